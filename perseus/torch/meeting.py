"""Where ranks on several hosts meet under torchrun: rank 0 leaves word of it in PyTorch's store.

Ranks that torch.distributed has numbered, and not a launcher, meet as numbered_ranks.py says.

Rank 0 can then listen at a port that nobody could take before. Whoever reaches the store can read
it and write to it, so it holds nothing but that port: a rank calls there first, has the other side
prove that it knows the job's secret, and looks at the usual ports, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeAlias

import torch.distributed as dist

from perseus.torch import numbered_ranks
from perseus.torch.threads_at_exit import wait_at_exit
from perseus_core import process

__all__ = ["open_board"]

_CONNECT_TIME = timedelta(seconds=10)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # in seconds, between two looks
_MOST_DIGITS = 5

# Does something with a key and a port; returns whether that is done for good.
_Body: TypeAlias = Callable[[str, int], bool]


@contextlib.contextmanager
def open_board() -> Iterator[process.MeetingBoard | None]:
    """Opens what perseus_core.process.open_meeting_board is for; None if there is no store."""
    if not _is_of_use():
        yield None
        return
    board = _Board(numbered_ranks.given_store())
    try:
        yield board
    finally:
        board.close()


def _is_of_use() -> bool:
    """Returns whether torchrun has started ranks on several hosts, and there is a store."""
    environment = os.environ
    if environment.get("PERSEUS_MASTER_PORT"):
        return False
    if not all(environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")):
        return False
    try:
        _, size, variable = process.launched_as()
    except ValueError:  # init reports it
        return False
    if variable not in ("RANK", "LOCAL_RANK"):
        return False
    if str(size) in ("1", environment.get("LOCAL_WORLD_SIZE")):
        return False  # ranks of one host meet by themselves
    return dist.is_available() and (
        numbered_ranks.given_store() is not None
        or dist.is_initialized()
        or environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    )


class _Board:
    """A MeetingBoard in a store.

    A store that does not answer must not stop init, so a thread speaks with it.
    """

    def __init__(self, store: dist.Store | None) -> None:
        self._store = store
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._port = 0

    def __call__(self, generation: int, port: int) -> int:
        if self._thread is None:
            key = _key(generation)
            body, argument = (self._leave, port) if port else (self._look, 0)
            self._thread = threading.Thread(
                target=self._keep_trying, args=(body, key, argument), daemon=True
            )
            wait_at_exit(self._thread)
            self._thread.start()
        return self._port

    def close(self) -> None:
        self._closed.set()

    def _keep_trying(self, body: _Body, key: str, port: int) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                if body(key, port):
                    return
            except (RuntimeError, ValueError, OSError):
                pass  # it cannot be reached, or somebody has written nonsense
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _leave(self, key: str, port: int) -> bool:
        self._opened().set(key, str(port))
        return True

    def _look(self, key: str, _: int) -> bool:
        store = self._opened()
        if store.check([key]):
            self._port = _port_in(store.get(key))
        return False  # rank 0 may be another one after a restart, and leave word again

    def _opened(self) -> dist.Store:
        if self._store is None and dist.is_initialized():
            self._store = dist.distributed_c10d._get_default_store()
        if self._store is None:
            self._store = dist.TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                timeout=_CONNECT_TIME,
                wait_for_workers=False,
            )
        return self._store


def _key(generation: int) -> str:
    """Returns a key that no other run, attempt or init of the job has."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return f"perseus/meeting/{run}/{attempt}/{generation}"


def _port_in(written: bytes) -> int:
    if not written.isdigit() or len(written) > _MOST_DIGITS:
        raise ValueError("this is no port")
    return int(written)


process.open_meeting_board = open_board
