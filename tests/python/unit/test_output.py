from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from perseus.run.output import Output, Stream


class Sinks:
    def __init__(self) -> None:
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []

    def output(self, size: int = 2, **options: Any) -> Output:
        sinks: dict[Stream, Any] = {"stdout": self.stdout.append, "stderr": self.stderr.append}
        return Output(size, sinks=sinks, **options)


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


def test_progress_bar_keeps_its_carriage_returns() -> None:
    sinks = Sinks()
    output = sinks.output()
    output.write(0, "stderr", b"\r10%")
    output.write(0, "stderr", b"\r20%\r")
    output.write(0, "stderr", b"\n")
    assert sinks.stderr == [b"[0]<stderr>:\r", b"[0]<stderr>:10%\r", b"[0]<stderr>:20%\r\n"]


def test_time_comes_first_when_asked_for() -> None:
    sinks = Sinks()
    sinks.output(timestamps=True).write(0, "stdout", b"x\n")
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\[0\]<stdout>:x\n", b"".join(sinks.stdout))


def test_files_hold_what_a_rank_wrote_without_tags(tmp_path: Path) -> None:
    output = Sinks().output(size=11, folder=tmp_path)
    output.write(3, "stdout", b"one\ntw")
    output.write(3, "stdout", b"o")
    output.write(10, "stderr", b"\xff\n")
    output.finish(3)
    output.finish(10)
    assert (tmp_path / "rank.03/stdout").read_bytes() == b"one\ntwo"
    assert (tmp_path / "rank.10/stderr").read_bytes() == b"\xff\n"


def test_a_line_without_end_is_cut() -> None:
    sinks = Sinks()
    sinks.output().write(0, "stdout", b"x" * (2 << 20))
    assert len(sinks.stdout) == 1
