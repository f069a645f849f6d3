"""What ranks report on others, and what else arrives on that descriptor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perseus.run.news import Accusation, Met, parse_news
from perseus.run.rank_sockets import NewsSocket

LAUNCHER = [sys.executable, "-m", "perseus.run", "-np", "2"]
#: Begins before the rank, in whose place it speaks: of a world that it has made up, and as engines
#: spoke before they named their worlds.
HELPER = """
import os, socket, sys, time
news = socket.socket(fileno=int(os.environ["PERSEUS_NEWS_FD"]))
other = 1 - int(os.environ["PERSEUS_RANK"])
parent = os.getppid()
while os.getppid() == parent:
    for world in ("", "f" * 32 + " "):
        for words in ("met 0 1", f"{other} lost", f"{other} left"):
            try: news.send(f"{world}{words}".encode())
            except OSError: pass
    if sys.argv[1] == "mutes": news.shutdown(socket.SHUT_RDWR)
    open(f"spoke {1 - other}", "w").close()
    time.sleep(0.2)
"""
#: Rank 1 goes on for longer than it takes to end a rank that the others have given up.
TRAINS = """
import os, time, numpy
import perseus_core as core
rank = int(os.environ["PERSEUS_RANK"])
while not all(os.path.exists(f"spoke {each}") for each in SPEAKERS): time.sleep(0.01)
time.sleep(1.5)
core.init()
for step in range(10): core.allreduce(numpy.ones(1), name="step")
core.shutdown()
if rank == 1: time.sleep(2.5)
print("done", flush=True)
"""


@pytest.mark.parametrize("speakers", [(0,), (0, 1)], ids=["one", "both"])
@pytest.mark.parametrize("how", ["exec", ""], ids=["its parent is the rank", "beside the rank"])
@pytest.mark.parametrize("options", [(), ("--min-np", "1")], ids=["all needed", "survivors"])
def test_a_helper_of_ranks_has_no_healthy_rank_ended(
    options: tuple[str, ...], how: str, speakers: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(TRAINS.replace("SPEAKERS", str(speakers)))
    starts = " || ".join(f"test $PERSEUS_RANK = {each}" for each in speakers)
    python = f"{sys.executable} -S"
    shell = (
        f"({starts}) && {{ {python} helper.py speaks & }}; {how} {sys.executable} train.py; exit $?"
    )
    done = subprocess.run(
        [*LAUNCHER, "--quiet", *options, "sh", "-c", shell],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:done", "[1]<stdout>:done"]
    assert done.stderr == ""


#: Rank 1 is stopped, and rank 0 goes home.
GIVES_UP = """
import os, signal, time, numpy
import perseus_core as core
while not os.path.exists("spoke 0"): time.sleep(0.01)
core.init()
if core.rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
try:
    core.allreduce(numpy.ones(1))
except core.HorovodInternalError:
    print("goes home", flush=True)
"""


def test_a_helper_that_speaks_first_does_not_keep_its_rank_from_being_heard(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(GIVES_UP)
    python = f"{sys.executable} -S"
    helper = f"test $PERSEUS_RANK = 0 && {{ {python} helper.py speaks & }}"
    shell = f"{helper}; {sys.executable} train.py; exit $?"
    done = subprocess.run(
        [*LAUNCHER, "sh", "-c", shell],
        cwd=tmp_path,
        env={**os.environ, "PERSEUS_PEER_TIMEOUT": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "[0]<stdout>:goes home" in done.stdout
    assert "rank 1 on host localhost: given up on by all others" in done.stderr


@pytest.mark.parametrize("words", ["junk", "f" * 32 + " met 0 1"])
def test_a_child_that_writes_without_end_keeps_no_job_from_ending(words: str) -> None:
    floods = """
import os, socket
news = socket.socket(fileno=int(os.environ["PERSEUS_NEWS_FD"]))
while os.fork() == 0:
    os.setsid()
    while True: news.send(b"WORDS")
os._exit(3)
"""
    floods = floods.replace("WORDS", words)
    command = [*LAUNCHER, sys.executable, "-S", "-c", floods]
    assert subprocess.run(command, capture_output=True, timeout=30).returncode == 3


@pytest.fixture
def news() -> NewsSocket:
    return NewsSocket()


WORLD = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "junk",
    [b"met 0 1", b"\n", b"\xff\0", WORLD.encode(), WORLD.encode() + b" ", b"1 lost", b"x" * 70000]
    + [WORLD.encode() + words for words in (b"met 0", b" met  0", b" 0\nlost", b" 0 LOST")],
)
def test_what_no_engine_says_does_not_reach_the_launcher(news: NewsSocket, junk: bytes) -> None:
    news.other_end.send(junk)
    assert news.read() == b""
    words = f"{WORLD} met 0 1".encode()
    news.other_end.send(words)
    assert news.read() == words


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
    ("words", "parsed"),
    [
        (b"2 lost", Accusation(WORLD, [2], is_lost=True)),
        (b"0 2 lost", Accusation(WORLD, [0, 2], is_lost=True)),
        (b"0 left\n", Accusation(WORLD, [0], is_lost=False)),
        (b"met 0 1 2", Met(WORLD, [0, 1, 2])),
        (b"met 1", Met(WORLD, [1])),
        *((junk, None) for junk in (b"", b" ", b"met", b"met 0", b"met 1 x", b"met 1 9", b"lost")),
        *((junk, None) for junk in (b"1 lost", b"3 lost", b"-1 lost", b"0 gone", b"0 lost 2")),
        *((junk, None) for junk in (b"\xff\0", "٢ lost".encode(), b"9" * 5000 + b" lost")),
    ],
)
def test_words_that_make_no_sense_are_no_news(words: bytes, parsed: object) -> None:
    assert parse_news(WORLD.encode() + b" " + words, speaker=1, size=3) == parsed


@pytest.mark.parametrize("junk", [b"", b" ", b"met 0 1 2", b"\xff met 0 1 2"])
def test_words_without_a_world_are_no_news(junk: bytes) -> None:
    assert parse_news(junk, speaker=1, size=3) is None
