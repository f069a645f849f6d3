"""What ranks report on others, and what else arrives on that descriptor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perseus.run.news import Accusation, Met, parse_news
from perseus.run.news_socket import NewsSocket

LAUNCHER = [sys.executable, "-m", "perseus.run", "-np", "2"]
#: Both ranks go on for longer than it takes to kill a rank that the others have given up.
SLANDERS = """
import os, socket, sys, time
import numpy, perseus_core
ENGINE
def slander():
    news = socket.socket(fileno=int(os.environ["PERSEUS_NEWS_FD"]))
    other = 1 - int(os.environ["PERSEUS_RANK"])
    for words in (b"", b"\\n", b"\\xff\\0", b"met", b"met x", b"met 7", b"lost", b"-1 lost",
                  b"99999999999999999999 lost", b"%d lost" % other, b"%d lost\\n" % other):
        news.send(words)
    os._exit(0)
child = os.fork() or slander()
os.waitpid(child, 0)
time.sleep(2)
perseus_core.allreduce(numpy.ones(1), name="after")
print("done")
"""


@pytest.mark.parametrize("options", [(), ("--min-np", "1")])
@pytest.mark.parametrize("shell", [False, True], ids=["the rank", "a shell's child"])
def test_a_forked_child_cannot_have_a_healthy_rank_killed(
    shell: bool, options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SLANDERS.replace("ENGINE", "perseus_core.init()"))
    command = [sys.executable, "script.py"]
    if shell:
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    done = subprocess.run(
        [*LAUNCHER, "--quiet", *options, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:done", "[1]<stdout>:done"]
    assert done.stderr == ""


def test_a_child_that_writes_without_end_keeps_no_job_from_ending() -> None:
    floods = """
import os, socket
news = socket.socket(fileno=int(os.environ["PERSEUS_NEWS_FD"]))
while os.fork() == 0:
    os.setsid()
    while True: news.send(b"met " + os.environ["PERSEUS_RANK"].encode())
os._exit(3)
"""
    command = [*LAUNCHER, sys.executable, "-S", "-c", floods]
    assert subprocess.run(command, capture_output=True, timeout=30).returncode == 3


Speak = Callable[[bytes], None]


@pytest.fixture
def news() -> NewsSocket:
    return NewsSocket(1)


def in_child(speak: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        speak()
        os._exit(0)
    return child


def say_in_child(news: NewsSocket, words: bytes) -> None:
    os.waitpid(in_child(lambda: news.other_end.send(words) and None), 0)


def test_the_process_that_has_met_the_others_is_believed_and_no_other(news: NewsSocket) -> None:
    news.other_end.send(b"0 lost")
    assert news.read() == b""  # it has not met anybody
    news.other_end.send(b"met 0 1")
    assert news.read() == b"met 0 1"
    for words in (b"0 lost", b"met 0 1", b"met 1"):
        say_in_child(news, words)
        assert news.read() == b""
    news.other_end.send(b"0 lost")
    assert news.read() == b"0 lost"


def test_a_rank_that_begins_after_another_has_ended_is_believed(news: NewsSocket) -> None:
    for _ in range(2):
        say_in_child(news, b"met 0 1")
        assert news.read() == b"met 0 1"


def test_a_child_that_speaks_first_does_not_silence_its_parent(news: NewsSocket) -> None:
    begun, may_end = os.pipe(), os.pipe()

    def speak_and_stay() -> None:
        news.other_end.send(b"met 1")
        os.write(begun[1], b"x")
        os.read(may_end[0], 1)

    child = in_child(speak_and_stay)
    os.read(begun[0], 1)
    assert news.read() == b"met 1"
    news.other_end.send(b"met 0 1")
    assert news.read() == b"met 0 1"
    os.write(may_end[1], b"x")
    os.waitpid(child, 0)
    for end in (*begun, *may_end):
        os.close(end)


def test_what_a_rank_leaves_behind_does_not_take_its_place(news: NewsSocket) -> None:
    def meet_and_leave_a_child() -> None:
        news.other_end.send(b"met 0 1")
        say_in_child(news, b"met 0 1")

    news.process = in_child(meet_and_leave_a_child)
    os.waitpid(news.process, 0)
    assert [news.read(), news.read()] == [b"met 0 1", b""]


def test_a_world_without_the_rank_is_not_its_own(news: NewsSocket) -> None:
    news.other_end.send(b"met 0 2")
    assert news.read() == b""


def test_an_empty_message_is_not_the_end(news: NewsSocket) -> None:
    news.other_end.send(b"")
    assert news.read() == b""
    with pytest.raises(BlockingIOError):
        news.read()
    news.other_end.close()
    assert news.read() is None


def test_descriptors_that_come_along_are_not_kept(news: NewsSocket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        socket.send_fds(news.other_end, [b"met 1"], [0, 1, 2])
        news.read()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        (b"2 lost", Accusation([2], is_lost=True)),
        (b"0 2 lost", Accusation([0, 2], is_lost=True)),
        (b"0 left\n", Accusation([0], is_lost=False)),
        (b"met 0 1 2", Met([0, 1, 2])),
        (b"met 1", Met([1])),
        *((junk, None) for junk in (b"", b" ", b"met", b"met 0", b"met 1 x", b"met 1 9", b"lost")),
        *((junk, None) for junk in (b"1 lost", b"3 lost", b"-1 lost", b"0 gone", b"0 lost 2")),
        *((junk, None) for junk in (b"\xff\0", "٢ lost".encode(), b"9" * 5000 + b" lost")),
    ],
)
def test_words_that_make_no_sense_are_no_news(message: bytes, parsed: object) -> None:
    assert parse_news(message, speaker=1, size=3) == parsed
