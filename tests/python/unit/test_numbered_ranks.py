"""Ranks that are given to init_process_group as arguments: no launcher knows of them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import RunRanks
from free_ports import find_free_ports

pytest.importorskip("torch")

#: What the programs below have in common: METHODS give init_process_group's arguments.
HEAD = """
import contextlib, os, sys, threading
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import perseus.torch
import perseus.torch.horovod as hvd

FOLDER = sys.argv[1]
PORT = int(sys.argv[2])

def tcp_store(rank, size, port):
    return dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=timedelta(seconds=60))

def by_environment(rank, size, i):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT))
    return {}

METHODS = {
    "environment": by_environment,
    "file": lambda rank, size, i: {"init_method": f"file://{FOLDER}/rendezvous{i}"},
    "tcp": lambda rank, size, i: {"init_method": f"tcp://127.0.0.1:{PORT + 1}"},
    "file store": lambda rank, size, i: {"store": dist.FileStore(f"{FOLDER}/store{i}", size)},
    "tcp store": lambda rank, size, i: {"store": tcp_store(rank, size, PORT + 2)},
    "prefix store": lambda rank, size, i: {
        "store": dist.PrefixStore("mine", dist.PrefixStore("ours", tcp_store(rank, size, PORT + 3)))
    },
}

def start(backend, rank, size, method="file", i=0):
    arguments = METHODS[method](rank, size, i)
    dist.init_process_group(
        backend, rank=rank, world_size=size, timeout=timedelta(seconds=60), **arguments
    )

def check_sum(group=None):
    total = torch.ones(3) * (dist.get_rank(group) + 1)
    dist.all_reduce(total, group=group)
    n = dist.get_world_size(group)
    assert total.tolist() == [n * (n + 1) / 2] * 3, total

def check_horovod(rank, size):
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size), (hvd.rank(), hvd.size())
    assert hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum).item() == size * (size + 1) / 2

def refused(call, kind, *parts):
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), (part, error)
    else:
        raise AssertionError("it went on")
"""
TAIL = """
if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[3]),), nprocs=int(sys.argv[3]))
"""


@pytest.fixture
def port() -> int:
    """The first of four ports in a row that are free."""
    return find_free_ports(4)[0]


def environment(**variables: str) -> dict[str, str]:
    """Returns an environment in which no launcher has left anything."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PERSEUS_", "HOROVOD_", "TORCHELASTIC_", "SLURM_", "PMI", "OMPI_"))
        and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
        and name not in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    return {**kept, "PERSEUS_START_TIMEOUT": "60", **variables}


def spawn(
    folder: Path, port: int, ranks: int, work: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the text of a function `work(rank, size)` in processes of torch.multiprocessing."""
    program = folder / "program.py"
    program.write_text(HEAD + work + TAIL)
    return subprocess.run(
        [sys.executable, str(program), str(folder), str(port), str(ranks)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=200,
    )


def expect_well(result: subprocess.CompletedProcess[str], ranks: int) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == ranks, result.stdout + result.stderr


AGAIN_AND_AGAIN = """
def work(rank, size):
    for i in range(2):
        for method in METHODS:
            start("perseus", rank, size, method, i)
            check_sum()
            check_horovod(rank, size)
            dist.destroy_process_group()
            assert not hvd.is_initialized()
    # A smaller world, in the other order, which some ranks know nothing of; then all again.
    if rank < size - 1:
        start("perseus", size - 2 - rank, size - 1, i="smaller")
        check_sum()
        dist.destroy_process_group()
    start("perseus", size - 1 - rank, size, i="last")
    check_sum()
    check_horovod(size - 1 - rank, size)
    dist.destroy_process_group()
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_meet_by_every_method_and_again_with_others(
    tmp_path: Path, port: int, ranks: int
) -> None:
    expect_well(spawn(tmp_path, port, ranks, AGAIN_AND_AGAIN), ranks)


def test_a_secret_of_the_users_own_is_used(tmp_path: Path, port: int) -> None:
    result = spawn(tmp_path, port, 2, AGAIN_AND_AGAIN, PERSEUS_SECRET="5ec4e7" * 8)
    expect_well(result, 2)


SAME_STORE = """
def work(rank, size):
    store = tcp_store(rank, size, PORT)
    for _ in range(5):
        dist.init_process_group("perseus", rank=rank, world_size=size, store=store)
        check_sum()
        dist.destroy_process_group()
    if size == 1:
        dist.init_process_group("perseus", rank=0, world_size=1, store=dist.HashStore())
        check_sum()
        dist.destroy_process_group()
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_one_store_serves_many_worlds(tmp_path: Path, port: int, ranks: int) -> None:
    expect_well(spawn(tmp_path, port, ranks, SAME_STORE), ranks)


def test_no_descriptor_or_thread_is_left_of_a_meeting(tmp_path: Path, port: int) -> None:
    result = spawn(
        tmp_path,
        port,
        2,
        """
def work(rank, size):
    held = []
    for i in range(6):
        start("perseus", rank, size, i=i)
        check_sum()
        dist.destroy_process_group()
        held.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    assert held[-1] == held[1], held
    print("well", flush=True)
""",
    )
    expect_well(result, 2)


#: A rank of its own, by arguments: rank, size, file.
STRANGER = """
import sys, torch, torch.distributed as dist, perseus.torch
rank, size, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("perseus", init_method="file://" + file, rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""


def strangers(
    ranks: Sequence[int], size: int, file: Path, variables: Sequence[dict[str, str]] = ()
) -> list[tuple[int, str]]:
    """Runs these ranks, none of which has started another; returns exit statuses and outputs."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STRANGER, str(rank), str(size), str(file)],
            env=environment(**(variables[i] if variables else {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i, rank in enumerate(ranks)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_processes_that_know_only_a_file_meet(tmp_path: Path) -> None:
    for status, text in strangers([2, 0, 1], 3, tmp_path / "file"):
        assert status == 0, text
        assert "sum 3.0" in text


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    few = {"PERSEUS_START_TIMEOUT": "3"}
    said = strangers([0, 2], 3, tmp_path / "without-1", [few, few])
    assert (
        "rank 0 of 3 in torch.distributed has waited 3 s in PyTorch's store for rank 1;"
        in (said[0][1])
    )
    ((_, text),) = strangers([1], 3, tmp_path / "without-0", [few])
    assert "rank 1 of 3 in torch.distributed has waited 3 s in PyTorch's store for rank 0" in text


def test_a_secret_on_some_ranks_is_an_error(tmp_path: Path) -> None:
    few = {"PERSEUS_START_TIMEOUT": "5"}
    own = {**few, "PERSEUS_SECRET": "5ec4e7" * 8}
    for variables, told in (
        ([own, few], "rank 0 has PERSEUS_SECRET in its environment, and this rank has not"),
        ([few, own], "this rank has PERSEUS_SECRET in its environment, and rank 0 has not"),
    ):
        said = strangers([0, 1], 2, tmp_path / str(len(told)), variables)
        assert told in said[1][1]
        assert said[0][0] != 0


def test_different_secrets_are_an_error(tmp_path: Path) -> None:
    variables = [
        {"PERSEUS_START_TIMEOUT": "5", "PERSEUS_SECRET": secret}
        for secret in ("ab" * 16, "cd" * 16)
    ]
    (_, text0), (_, text1) = strangers([0, 1], 2, tmp_path / "file", variables)
    assert "PERSEUS_SECRET is another on this rank than on rank 0" in text1, text0 + text1


#: What a stranger may write into the store: a call, or a word on the call named "call".
CALL = '{"name": "call", "near": ""}'
LIES = [
    ("[" * 200_000, ""),
    ('{"name": "\\ud800", "near": ""}', ""),
    (CALL, "[1]"),
    (CALL, '{"error": "forged"}'),
    (CALL, '{"error": ' + "[" * 800 + "]" * 800 + "}"),
    (CALL, '{"places": "127.0.0.1:1", "secret": "own", "ask": ""}'),
    (CALL, '{"places": "127.0.0.1:1", "secret": "own", "ask": "", "proof": "\\ud800"}'),
    (CALL, '{"places": "127.0.0.1:1", "secret": "own", "ask": "", "proof": "é"}'),
]


@pytest.mark.parametrize(("call", "word"), LIES)
def test_the_word_of_a_stranger_in_the_store_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, call: str, word: str
) -> None:
    from torch.distributed import HashStore

    from perseus.torch.store_meeting import Meeting, World

    monkeypatch.setenv("PERSEUS_SECRET", "5ec4e7" * 8)
    monkeypatch.delenv("PERSEUS_RANK", raising=False)
    store = HashStore()
    store.set("perseus/call/2", call)
    if word:
        store.set("perseus/word/call", word)
    with ThreadPoolExecutor() as threads:
        other = threads.submit(Meeting(World(1, 2, store), [0, 1]).place)
        time.sleep(0.2)
        mine = Meeting(World(0, 2, store), [0, 1])
        place = mine.place()
        assert other.result(timeout=20) == place._replace(rank=1)
        mine.end()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_whose_answers_are_held_back_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    from torch.distributed import TCPStore

    from perseus.torch.store_meeting import Meeting, World
    from perseus_core import TimedOutError

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and passes.is_set():
                target.sendall(data)

    monkeypatch.setenv("PERSEUS_START_TIMEOUT", "3")
    monkeypatch.delenv("PERSEUS_RANK", raising=False)
    served = TCPStore("127.0.0.1", 0, None, True)
    passes = threading.Event()
    passes.set()
    with socket.create_server(("127.0.0.1", 0)) as between:
        with ThreadPoolExecutor() as threads:
            port = between.getsockname()[1]
            store = threads.submit(TCPStore, "127.0.0.1", port, None, False)
            near, far = between.accept()[0], socket.create_connection(("127.0.0.1", served.port))
            threads.submit(pass_on, near, far)
            threads.submit(pass_on, far, near)
            meeting = Meeting(World(rank, 2, store.result(10)), [0, 1])
            passes.clear()
            with pytest.raises(TimedOutError, match="PyTorch's store, which does not answer"):
                meeting.place()
            for end in (near, far):
                end.shutdown(socket.SHUT_RDWR)


def test_numbers_that_only_some_ranks_have_from_the_launcher_are_an_error(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    script = f"""
import os, time, torch.distributed as dist, perseus.torch
rank = [0, 2, 1][int(os.environ["RANK"])]
try:
    dist.init_process_group("perseus", init_method="file://{tmp_path}/f", rank=rank, world_size=3)
finally:
    time.sleep(0 if rank else 10)  # its end would end the others before they have told
"""
    few = {**os.environ, "PERSEUS_START_TIMEOUT": "3"}
    result = run_ranks(3, script, environment=few)
    assert result.returncode != 0
    assert re.search(
        r"rank [12] of 3 in torch.distributed has waited 3 s .* by its launcher \(PERSEUS_RANK\) "
        r"this process is rank [12] of 3",
        result.stderr + result.stdout,
    ), result.stderr + result.stdout


def test_perseus_that_was_initialized_with_other_numbers_is_an_error(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    script = f"""
import os, torch.distributed as dist, perseus.torch.horovod as hvd, perseus.torch
hvd.init()
try:
    dist.init_process_group(
        "perseus", init_method="file://{tmp_path}/f", rank=1 - hvd.rank(), world_size=2
    )
except ValueError as error:
    print(error)
hvd.shutdown()
"""
    result = run_ranks(2, script)
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        assert (
            f"this is rank {1 - rank} of 2 in torch.distributed, and rank {rank} of 2 in Perseus, "
            "which was initialized before"
        ) in result.stdout


def test_ranks_of_perseusrun_may_spawn_worlds_of_their_own(
    run_ranks: RunRanks, tmp_path: Path, port: int
) -> None:
    """Their numbers happen to be those that the launcher has given to other processes."""
    work = """
def work(rank, size):
    global FOLDER
    FOLDER += "/" + os.environ["PERSEUS_RANK"]
    start("perseus", rank, size)
    parts = [None] * size
    dist.all_gather_object(parts, os.environ["PERSEUS_RANK"])
    assert parts == [os.environ["PERSEUS_RANK"]] * size, parts
    check_horovod(rank, size)
    dist.destroy_process_group()
    print("well", flush=True)

if __name__ == "__main__":
    hvd.init()
    mp.spawn(work, args=(2,), nprocs=2)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
"""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    arguments = f"import sys\nsys.argv[1:] = ['{tmp_path}', '{port}']\n"
    result = run_ranks(2, arguments + HEAD + work)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("well") == 4


HOROVOD_AFTER_GLOO = """
def work(rank, size):
    for i in range(2):
        start("gloo", rank, size, i=i)
        check_horovod(rank, size)
        hvd.shutdown()
        check_horovod(rank, size)
        hvd.shutdown()
        if size > 2:
            hvd.init([1, 2])
            assert hvd.size() == (2 if rank in (1, 2) else 1)
            if rank in (1, 2):
                assert hvd.rank() == rank - 1
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
            dist.barrier()
            hvd.shutdown()
        dist.destroy_process_group()
    hvd.init()
    assert hvd.size() == 1  # nobody says anything else any more
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_horovods_init_follows_the_process_group(tmp_path: Path, port: int, ranks: int) -> None:
    expect_well(spawn(tmp_path, port, ranks, HOROVOD_AFTER_GLOO), ranks)


GROUPS_IN_A_WORLD_OF_GLOO = """
def work(rank, size):
    for i in range(2):
        start("gloo", rank, size, i=i)
        # All ranks, in groups on top of each other.
        whole = dist.new_group(backend="perseus")
        check_sum(whole)
        some = list(range(size // 2, size))
        part = dist.new_group(some, backend="perseus")
        if rank in some:
            check_sum(part)
            dist.destroy_process_group(part)
        check_sum(whole)
        check_horovod(rank, size)
        check_sum()
        dist.destroy_process_group(whole)
        assert not hvd.is_initialized()
        # A part first: it is a world of its own, and other ranks do without.
        part = dist.new_group(some, backend="perseus")
        if rank in some:
            check_sum(part)
            if size > len(some):
                refused(
                    lambda: dist.new_group(backend="perseus"),
                    ValueError, "not in the world of Perseus", f"of ranks {some}",
                )
        dist.destroy_process_group()
        assert not hvd.is_initialized()
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_groups_in_a_world_of_another_backend(tmp_path: Path, port: int, ranks: int) -> None:
    expect_well(spawn(tmp_path, port, ranks, GROUPS_IN_A_WORLD_OF_GLOO), ranks)


BACKENDS_BY_DEVICE = """
def work(rank, size):
    for i, backend in enumerate((
        "cpu:perseus", "cpu:perseus,cuda:perseus", "cpu:perseus,cuda:nccl", "cpu:gloo,cuda:perseus",
    )):
        start(backend, rank, size, i=i)
        check_sum()
        group = dist.new_group(backend=backend)
        check_sum(group)
        dist.destroy_process_group()
        start("gloo", rank, size, i=f"gloo{i}")
        group = dist.new_group(backend=backend)
        check_sum(group)
        dist.destroy_process_group()
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_backends_that_are_named_by_device(tmp_path: Path, port: int, ranks: int) -> None:
    expect_well(spawn(tmp_path, port, ranks, BACKENDS_BY_DEVICE), ranks)


A_MEMBER_THAT_IS_LATE = """
import time

def work(rank, size):
    start("perseus", rank, size)
    for late in range(size):
        dist.barrier()
        before = time.monotonic()
        if rank == late:
            time.sleep(0.3)
        group = dist.new_group()
        assert time.monotonic() - before > 0.25, (rank, late)
        check_sum(group)
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_new_group_returns_once_all_members_have_come(
    tmp_path: Path, port: int, ranks: int
) -> None:
    # Else PyTorch drops the Gloo of "cpu:gloo,cuda:perseus" while a member connects to it.
    expect_well(spawn(tmp_path, port, ranks, A_MEMBER_THAT_IS_LATE), ranks)
