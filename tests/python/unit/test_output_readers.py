"""Readers of perseusrun's output that are slow, stuck or gone, and disks that are full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perseus.run.bounded_writer import BOUND_BYTES

#: Rank 0 prints numbered lines, without end or `limit` of them, and counts them in the file
#: `printed`. Rank 1 fails once the file `fail` is there.
PRINTS = """
import os, pathlib, sys, time
limit = int(sys.argv[1])
if os.environ["PERSEUS_RANK"] == "1":
    while limit and not pathlib.Path("fail").exists(): time.sleep(0.01)
    sys.exit(5 if limit else 0)
count = os.open("printed", os.O_CREAT | os.O_WRONLY)
number = 0
while number != limit:
    print(f"{number:08d}" + "y" * 1991, flush=True)
    number += 1
    os.pwrite(count, str(number).encode(), 0)
"""
LINE_BYTES = 2000
ENDLESS = "-1"
LAUNCHER = [sys.executable, "-m", "perseus.run", "-np", "2", "--quiet", "--no-tag", "--grace", "60"]


class Printing:
    """A job that prints, whose stdout is a pipe that the test reads or not."""

    def __init__(self, folder: Path, lines: str, *options: str, stderr: int = subprocess.PIPE):
        self._folder = folder
        (folder / "script.py").write_text(PRINTS)
        (folder / "printed").write_text("0")
        self.process = subprocess.Popen(
            [*LAUNCHER, *options, "script.py", lines],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert self.process.stdout
        self.stdout = self.process.stdout

    @property
    def printed(self) -> int:
        return int((self._folder / "printed").read_text())

    def wait_until_held_back(self) -> None:
        """Waits until rank 0 has printed more than fits anywhere, and prints no more."""
        deadline = time.monotonic() + 60
        before = -1
        while self.printed != before or before * LINE_BYTES < BOUND_BYTES:
            assert time.monotonic() < deadline
            before = self.printed
            time.sleep(0.3)

    def fail(self) -> None:
        (self._folder / "fail").touch()

    def said(self) -> list[str]:
        """Returns what the launcher says until it ends, while nobody reads its stdout."""
        assert self.process.stderr
        return self.process.stderr.read().decode().splitlines()


@contextmanager
def printing(folder: Path, lines: str, *options: str, **more: int) -> Iterator[Printing]:
    job = Printing(folder, lines, *options, **more)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.communicate()


def has_said_the_loss(lines: list[str]) -> bool:
    start, end = "perseusrun: dropped ", " MiB of output, because stdout's reader did not read"
    return lines[-1].startswith(start) and lines[-1].endswith(end)


def test_a_failed_rank_ends_a_job_whose_output_is_not_read(tmp_path: Path) -> None:
    with printing(tmp_path, ENDLESS) as job:
        job.wait_until_held_back()
        job.fail()
        began = time.monotonic()
        lines = job.said()
        assert job.process.wait(timeout=30) == 5
        assert time.monotonic() - began < 10
    failed = "perseusrun: rank 1 on host localhost exited with code 5; ending the other 1"
    assert lines[0] == failed
    assert has_said_the_loss(lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_whose_output_is_not_read(number: int, tmp_path: Path) -> None:
    with printing(tmp_path, ENDLESS) as job:
        job.wait_until_held_back()
        began = time.monotonic()
        job.process.send_signal(number)
        lines = job.said()
        assert job.process.wait(timeout=30) == 128 + number
        assert time.monotonic() - began < 10
    assert has_said_the_loss(lines)


def test_a_job_ends_although_its_messages_cannot_be_read_either(tmp_path: Path) -> None:
    with printing(tmp_path, ENDLESS, stderr=subprocess.STDOUT) as job:
        job.wait_until_held_back()
        job.fail()
        assert job.process.wait(timeout=30) == 5


def test_a_reader_that_is_late_gets_every_line(tmp_path: Path) -> None:
    count = 4 * BOUND_BYTES // LINE_BYTES
    with printing(tmp_path, str(count)) as job:
        job.wait_until_held_back()
        assert job.printed < count
        status = Path(f"/proc/{job.process.pid}/status").read_text()
        (most,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        assert int(most) < 150_000  # kB
        numbers = [int(job.stdout.readline()[:8]) for _ in range(count)]
        assert numbers == list(range(count))


def test_a_reader_that_keeps_reading_gets_every_line_of_a_job_that_fails(tmp_path: Path) -> None:
    count = BOUND_BYTES // LINE_BYTES + 50
    with printing(tmp_path, str(count)) as job:
        job.wait_until_held_back()
        job.fail()
        numbers = []
        for line in iter(job.stdout.readline, b""):
            numbers.append(int(line[:8]))
            if len(numbers) % 100 == 0:
                time.sleep(0.05)  # 4 MB/s
        assert job.process.wait(timeout=30) == 5
        assert numbers == list(range(count))


def test_a_job_that_has_ended_waits_for_its_reader(tmp_path: Path) -> None:
    job = [*LAUNCHER, "sh", "-c", "yes | head -c 1000000"]
    with subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        assert launcher.stdout and launcher.stderr
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=3)
        assert len(launcher.stdout.read()) == 2_000_000
        assert launcher.wait(timeout=30) == 0
        assert launcher.stderr.read() == b""


def test_a_signal_ends_the_wait_for_a_reader(tmp_path: Path) -> None:
    job = [*LAUNCHER, "sh", "-c", "yes | head -c 1000000; echo $$ >&2"]
    with subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        assert launcher.stdout and launcher.stderr
        for rank in [int(launcher.stderr.readline()) for _ in range(2)]:
            while Path(f"/proc/{rank}").exists():
                time.sleep(0.01)
        launcher.send_signal(signal.SIGTERM)
        assert has_said_the_loss(launcher.stderr.read().decode().splitlines())
        assert launcher.wait(timeout=30) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "redirection", ["> /dev/full", "> /dev/full 2>&1", ">&-", "2>&-", ">&- 2>&-"]
)
def test_output_that_cannot_be_written_ends_no_job(redirection: str, tmp_path: Path) -> None:
    script = "echo out; echo err >&2; cat; touch ended.$PERSEUS_RANK"
    line = f'exec "$@" {redirection}'
    command = ["sh", "-c", line, "sh", *LAUNCHER, "--verbose", "sh", "-c", script]
    command.remove("--quiet")
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ended.0").exists()
    assert (tmp_path / "ended.1").exists()
    if redirection == "> /dev/full":
        lines = done.stderr.decode().splitlines()
        end = "stdout cannot be written: No space left on device"
        assert lines[-1] == f"perseusrun: dropped 1 KiB of output, because {end}"


def test_a_full_disk_under_the_files_ends_no_job(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0/stdout").symlink_to("/dev/full")
    command = [*LAUNCHER, "--output-filename", str(tmp_path), "sh", "-c", "yes | head -c 100000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == "y\n" * 100_000
    ends, dropped = done.stderr.splitlines()
    place = f"the output in {tmp_path}"
    assert ends == f"perseusrun: {place} ends here: No space left on device"
    assert dropped.startswith("perseusrun: dropped ")
    assert dropped.endswith(f"because {place} cannot be written: No space left on device")


def test_a_file_that_nobody_opens_delays_no_failure(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    os.mkfifo(tmp_path / "rank.0/stdout")
    command = [*LAUNCHER, "--output-filename", str(tmp_path), "sh", "-c", "echo out; exit 3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert "out\n" in done.stdout


def test_what_a_rank_leaves_behind_can_print_without_end() -> None:
    command = [*LAUNCHER, "sh", "-c", "yes & exit 3"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 3


def test_dots_without_a_newline_take_no_quadratic_time() -> None:
    from perseus.run.output import Output

    lines: list[bytes] = []
    output = Output(1, sinks={"stdout": lines.append, "stderr": lines.append})
    began = time.process_time()
    for _ in range(200_000):
        output.write(0, "stdout", b"....")
    output.finish(0)
    assert lines == [b"[0]<stdout>:" + b"." * 800_000 + b"\n"]
    assert time.process_time() - began < 10  # 80 GB of copies if it were quadratic


def test_lines_of_both_streams_reach_one_file_whole(tmp_path: Path) -> None:
    script = "for i in $(seq 300); do echo $i; echo $i >&2; done"
    command = [*LAUNCHER, "--only-rank", "0", "sh", "-c", script]
    with (tmp_path / "both").open("wb") as both:
        subprocess.run(command, stdout=both, stderr=subprocess.STDOUT, timeout=60, check=True)
    numbers = (tmp_path / "both").read_text().split()
    assert sorted(numbers) == sorted([str(number) for number in range(1, 301)] * 2)
