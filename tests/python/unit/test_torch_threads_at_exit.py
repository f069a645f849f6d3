"""Processes that end while a thread runs PyTorch's code, which aborts them if they do not wait."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress

import pytest
from conftest import RunRanks, all_well

pytest.importorskip("torch")

from torch.distributed import TCPStore

#: Has the interpreter take a while to shut down.
SLOW_TO_GO = """
import time

class SlowToGo:
    def __del__(self):
        time.sleep(2)

slow = SlowToGo()
"""

#: Ends while a thread waits for a store.
ENDS_EARLY = """
import sys
import torch.distributed as dist
from perseus.torch import meeting
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
print("connected", flush=True)
sys.stdin.readline()
board = meeting._Board(store)
board(0, 0)
time.sleep(0.3)
board.close()
"""


def test_a_process_ends_before_a_store_has_answered() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    delay = [0.0]
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        where = str(listener.getsockname()[1])
        with subprocess.Popen(
            [sys.executable, "-c", SLOW_TO_GO + ENDS_EARLY, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", store.port))
            for source, target, late in ((client, server, [0.0]), (server, client, delay)):
                threading.Thread(target=pass_on, args=(source, target, late), daemon=True).start()
            assert process.stdout
            assert process.stdout.readline() == "connected\n"
            delay[0] = 1.0
            process.communicate("go on\n", timeout=60)
            assert process.returncode == 0
            server.close()
            client.close()


def pass_on(source: socket.socket, target: socket.socket, delay: Sequence[float]) -> None:
    """Passes on what it receives `delay` seconds later."""
    with suppress(OSError):
        while data := source.recv(65536):
            time.sleep(delay[0])
            target.sendall(data)


ENDS_BEFORE_ITS_CALLBACK = """
import torch, torch.distributed as dist, perseus.torch

def calls_pytorch(_):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        store.check(["any"])
    print("well", flush=True)

dist.init_process_group("perseus")
store = dist.distributed_c10d._get_default_store()
work = dist.all_reduce(torch.ones(3), async_op=True)
work.get_future().then(calls_pytorch)
work.wait()
time.sleep(0.1)
"""


def test_a_process_ends_before_the_callback_of_a_future_has(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, SLOW_TO_GO + ENDS_BEFORE_ITS_CALLBACK), 2)
