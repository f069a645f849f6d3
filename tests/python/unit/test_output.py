from __future__ import annotations

import re
import select
from pathlib import Path
from typing import Any

import pytest

from perseus.run.bounded_writer import BOUND_BYTES
from perseus.run.output import Output, Stream, remove_older
from perseus.run.rank_file import RankFile


class Sinks:
    def __init__(self) -> None:
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []

    def output(self, size: int = 2, **options: Any) -> Output:
        sinks: dict[Stream, Any] = {"stdout": self.stdout.append, "stderr": self.stderr.append}
        return Output(size, sinks=sinks, **options)


def wait_until_written(output: Output) -> None:
    writers = output.writers
    writers.await_all()
    while writers.waiting:
        assert select.select([writers.wakeup_fd], [], [], 30)[0]
        writers.take_wakeups()
    output.close()


def test_each_line_is_tagged_with_rank_and_stream() -> None:
    sinks = Sinks()
    output = sinks.output()
    output.write(0, "stdout", b"a\nb\n")
    output.write(1, "stderr", b"c\n")
    assert sinks.stdout == [b"[0]<stdout>:a\n", b"[0]<stdout>:b\n"]
    assert sinks.stderr == [b"[1]<stderr>:c\n"]


def test_a_line_that_comes_in_pieces_is_written_whole_and_once() -> None:
    sinks = Sinks()
    output = sinks.output()
    output.write(0, "stdout", b"hel")
    output.write(1, "stdout", b"other\n")
    output.write(0, "stdout", b"lo\n")
    assert sinks.stdout == [b"[1]<stdout>:other\n", b"[0]<stdout>:hello\n"]


def test_last_line_without_newline_is_shown_when_the_rank_ends() -> None:
    sinks = Sinks()
    output = sinks.output()
    output.write(0, "stdout", b"bye")
    output.finish(0)
    assert sinks.stdout == [b"[0]<stdout>:bye\n"]


#: What a rank writes, and what of it is shown where there is no terminal.
PROGRESS = {
    "a bar that begins with a return": (b"\r10%\r20%\r100%\nend\n", [b"100%\n", b"end\n"]),
    "a bar that ends with a return": (b"10%\r20%\r\nend\n", [b"20%\r\n", b"end\n"]),
    "a bar that is never ended": (b"\r10%\r20%", [b"20%\n"]),
    "a bar that ends with a return, and is never ended": (b"10%\r20%\r", [b"20%\n"]),
    "a bar that is cleared": (b"\r10%\r    \rend\n", [b"end\n"]),
    "a bar that is cleared at the end": (b"\r10%\r    \r", []),
    "lines that end as on Windows": (b"one\r\n\r\ntwo\r\n", [b"one\r\n", b"\r\n", b"two\r\n"]),
    "an end with two returns": (b"one\r\r\n", [b"one\r\n"]),
    "blanks of a line that was not written over": (b"  \n", [b"  \n"]),
}


@pytest.mark.parametrize("case", PROGRESS)
def test_of_a_progress_bar_only_the_last_state_is_written(case: str) -> None:
    written, shown = PROGRESS[case]
    tagged = [b"[0]<stderr>:" + line for line in shown]
    # However the bytes are cut into pieces, the result is the same.
    for first in range(len(written) + 1):
        for second in range(first, len(written) + 1):
            sinks = Sinks()
            output = sinks.output()
            for piece in (written[:first], written[first:second], written[second:]):
                output.write(0, "stderr", piece)
            output.finish(0)
            assert sinks.stderr == tagged, (written[:first], written[first:second])


def test_states_of_a_progress_bar_do_not_pile_up() -> None:
    sinks = Sinks()
    output = sinks.output()
    for percent in range(100000):
        output.write(0, "stderr", b"\r%d of 100000, which takes a while" % percent)
    output.write(0, "stderr", b"\n")
    assert sinks.stderr == [b"[0]<stderr>:99999 of 100000, which takes a while\n"]


def test_the_bars_of_several_ranks_do_not_touch_each_other() -> None:
    sinks = Sinks()
    output = sinks.output()
    for percent in (b"10%", b"20%"):
        for rank in range(2):
            output.write(rank, "stderr", b"\r%d: " % rank + percent)
    output.write(1, "stderr", b"\n")
    output.finish(0)
    assert sinks.stderr == [b"[1]<stderr>:1: 20%\n", b"[0]<stderr>:0: 20%\n"]


def test_one_rank_is_shown_and_all_are_kept_in_files(tmp_path: Path) -> None:
    sinks = Sinks()
    output = sinks.output(only_rank=1, folder=tmp_path)
    for rank in range(2):
        output.write(rank, "stdout", b"hello\n")
        output.write(rank, "stderr", b"\r1%\r2%\nRuntimeError: no\n")
        output.finish(rank)
    wait_until_written(output)
    assert sinks.stdout == [b"[1]<stdout>:hello\n"]
    assert sinks.stderr == [b"[1]<stderr>:2%\n", b"[1]<stderr>:RuntimeError: no\n"]
    assert (tmp_path / "rank.0/stdout").read_bytes() == b"hello\n"
    assert (tmp_path / "rank.0/stderr").read_bytes() == b"\r1%\r2%\nRuntimeError: no\n"
    assert output.hidden_last_line(0) == "RuntimeError: no"
    assert output.hidden_last_line(1) == ""


def test_without_tags_lines_are_as_the_rank_wrote_them() -> None:
    sinks = Sinks()
    sinks.output(tags=False).write(1, "stdout", b"x\n")
    assert sinks.stdout == [b"x\n"]


def test_a_space_follows_the_time_without_tags_too() -> None:
    sinks = Sinks()
    sinks.output(tags=False, timestamps=True).write(1, "stdout", b"x\n")
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d x\n", b"".join(sinks.stdout))


def test_time_comes_first_when_asked_for() -> None:
    sinks = Sinks()
    sinks.output(timestamps=True).write(0, "stdout", b"x\n")
    assert re.fullmatch(
        rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[0\]<stdout>:x\n", b"".join(sinks.stdout)
    )


def test_files_of_an_earlier_job_are_removed_and_others_kept(tmp_path: Path) -> None:
    for name in (
        "rank.0/stderr",
        "rank.12/stdout",
        "rank.3/stdout",
        "rank.3/mine",
        "rank.x/stdout",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    remove_older(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"rank.3", "rank.3/mine", "rank.x", "rank.x/stdout"}


def test_files_hold_what_a_rank_wrote_without_tags(tmp_path: Path) -> None:
    output = Sinks().output(size=11, folder=tmp_path)
    output.write(3, "stdout", b"one\ntw")
    output.write(3, "stdout", b"o")
    output.write(10, "stderr", b"\xff\n")
    output.finish(3)
    output.finish(10)
    wait_until_written(output)
    assert (tmp_path / "rank.03/stdout").read_bytes() == b"one\ntwo"
    assert (tmp_path / "rank.10/stderr").read_bytes() == b"\xff\n"


def test_a_line_without_end_is_cut() -> None:
    sinks = Sinks()
    sinks.output().write(0, "stdout", b"x" * (2 << 20))
    assert len(sinks.stdout) == 1


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError(), "MemoryError"),
        (ValueError("closed by another"), "closed by another"),
        (OSError("it has no number"), "it has no number"),
    ],
)
def test_whatever_writing_raises_is_said_and_holds_no_rank_back(
    error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: RankFile, data: memoryview) -> int:
        raise error

    monkeypatch.setattr(RankFile, "put", fails)
    sinks = Sinks()
    output = sinks.output(folder=tmp_path)
    output.write(0, "stdout", b"x" * (BOUND_BYTES + 1))
    wait_until_written(output)
    output.take_errors()
    assert not output.writers.must_hold_back(0.0, ends=False)
    end = f"perseusrun: the output in {tmp_path} ends here: {why}\n"
    assert sinks.stderr == [end.encode()]
