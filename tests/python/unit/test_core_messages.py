"""Messages between two ranks when one of them dies, leaves, or never does its part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, signal, sys, time
import numpy as np
import perseus_core as perseus

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when another rank has failed
perseus.init()
rank, size = perseus.rank(), perseus.size()

def failure(call, kind=perseus.AbortedError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it went on")
"""


def run(
    folder: Path, ranks: int, program: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(HEAD + program)
    settings = [f"{name}={value}" for name, value in environment.items()]
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks), *options]
    return subprocess.run(
        ["env", *settings, *launcher, sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=90,
    )


DIES = """
if rank == size - 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
last = size - 1
waits = [
    lambda: perseus.recv(last),
    lambda: perseus.send(np.zeros(2_000_000), last),
    lambda: perseus.recv(),
]
why = failure(waits[rank % 3])
assert f"lost rank {last}" in why, why
print("well", flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_everybody_hears_that_a_rank_has_died(tmp_path: Path, ranks: int, transport: str) -> None:
    result = run(tmp_path, ranks, DIES, PERSEUS_TRANSPORT=transport)
    assert result.stdout.count("well") == ranks - 1, result.stdout + result.stderr


DIES_AMID_A_MESSAGE = """
array = np.full(50_000_000, rank)
perseus.barrier()
if rank == 1:
    perseus.isend(array, 0)
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    perseus.recv(1, out=array)
except perseus.AbortedError as error:
    assert "rank 1" in str(error), error
else:
    assert (array == 1).all()  # it came just in time
print("well", flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_amid_a_message(tmp_path: Path, transport: str) -> None:
    result = run(tmp_path, 2, DIES_AMID_A_MESSAGE, PERSEUS_TRANSPORT=transport)
    assert result.stdout.count("well") == 1, result.stdout + result.stderr


STOPS = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(1)  # the launcher has it go on, to end
why = failure(lambda: perseus.recv(1))
assert "has said nothing for" in why and "rank 1" in why, why
print("well", flush=True)
os._exit(1)
"""


def test_a_rank_that_is_stopped_counts_as_lost(tmp_path: Path) -> None:
    result = run(tmp_path, 2, STOPS, PERSEUS_PEER_TIMEOUT="2")
    assert result.stdout.count("well") == 1, result.stdout + result.stderr


WAITS = """
if rank == 0:
    perseus.send(np.zeros(3), 1, tag=6)
    big = perseus.isend(np.zeros(2_000_000), 1, tag=8)
    time.sleep(3.5)
    perseus.send(np.zeros(3), 1, tag=7)
    big.wait()
else:
    perseus.recv(0, tag=6)
    perseus.recv(0, tag=7)
    perseus.recv(0, tag=8)
print("well", flush=True)
"""


def test_a_message_that_waits_long_is_reported(tmp_path: Path) -> None:
    result = run(tmp_path, 2, WAITS, PERSEUS_STALL_CHECK_TIME_SECONDS="1")
    assert result.stdout.count("well") == 2, result.stdout + result.stderr
    lines = [
        "rank 1 waits for tag 7 from rank 0, which last sent tag 8 (",
        "rank 0 has sent tag 8 to rank 1, which has not asked for it (",
    ]
    for line in lines:
        assert line in result.stderr, result.stderr
    assert result.stderr.count(lines[0]) <= 4, result.stderr


def test_reports_can_be_turned_off(tmp_path: Path) -> None:
    settings = {"PERSEUS_STALL_CHECK_TIME_SECONDS": "1", "PERSEUS_STALL_CHECK_DISABLE": "1"}
    result = run(tmp_path, 2, WAITS, **settings)
    assert result.stdout.count("well") == 2, result.stdout + result.stderr
    assert "waits for tag" not in result.stderr


WAITS_FOR_EVER = """
if rank == 0:
    time.sleep(1)
    why = failure(lambda: perseus.recv(1, tag=5))
else:
    why = failure(lambda: perseus.recv(0, tag=4))
assert "waits for tag" in why and "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS allows" in why, why
print("well", flush=True)
"""


def test_a_wait_ends_after_the_time_that_is_allowed(tmp_path: Path) -> None:
    times = {"PERSEUS_STALL_CHECK_TIME_SECONDS": "1", "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    result = run(tmp_path, 2, WAITS_FOR_EVER, **times)
    assert result.stdout.count("well") == 2, result.stdout + result.stderr


def test_ranks_agree_on_the_credit(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import os\nif os.environ['PERSEUS_RANK'] == '1':\n"
        "    os.environ['PERSEUS_MESSAGE_CREDIT'] = '7'\n" + HEAD
    )
    result = subprocess.run(
        [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert "PERSEUS_MESSAGE_CREDIT" in result.stderr


TIMELINE = """
if rank == 0:
    perseus.send(np.zeros(300_000, np.float32), 1, tag=4)
    perseus.recv(1)
else:
    perseus.recv(0)
    perseus.send(np.zeros(3), 0)
counts = perseus.counters()
assert counts["messages_sent"] == 1, counts
assert counts["message_bytes_sent"] == (1_200_000 if rank == 0 else 24), counts
perseus.barrier()
"""


def test_messages_are_in_the_timeline_and_counted(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    result = run(tmp_path, 2, TIMELINE, PERSEUS_TIMELINE=str(trace))
    assert result.returncode == 0, result.stdout + result.stderr
    text = trace.read_text()
    assert '"SEND"' in text and "to rank 1 (tag 4)" in text
    assert '"RECV"' in text and "from rank 1 (any tag)" in text


OVERTAKES = """
import threading
ended, all_ended = [], threading.Event()
def note(tag):
    ended.append(tag)
    if len(ended) == 21:
        all_ended.set()
urgency = 5 * int(os.environ["IS_URGENT"])
arrays = [np.full(1_000_000, tag) for tag in range(21)]
if rank == 1:
    for tag, array in enumerate(arrays):
        array[:] = -1
        perseus.irecv(0, tag=tag, out=array, callback=lambda _, tag=tag: note(tag))
perseus.barrier()
if rank == 0:
    sends = [perseus.isend(arrays[tag], 1, tag=tag) for tag in range(20)]
    perseus.send(arrays[20], 1, tag=20, priority=urgency)
    for handle in sends:
        handle.wait()
else:
    assert all_ended.wait(60)
    assert all((array == tag).all() for tag, array in enumerate(arrays))
    place = ended.index(20)
    assert place < 12 if urgency else place >= 15, ended
print("well", flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("is_urgent", [0, 1])
def test_an_urgent_message_overtakes_others(tmp_path: Path, transport: str, is_urgent: int) -> None:
    settings = {"PERSEUS_TRANSPORT": transport, "IS_URGENT": str(is_urgent)}
    result = run(tmp_path, 2, OVERTAKES, **settings)
    assert result.stdout.count("well") == 2, result.stdout + result.stderr
