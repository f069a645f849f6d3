"""Callbacks that are given after the submission, and names that are used in turn."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import perseus_core as core
from perseus_core import DataType, OperationKind, callbacks, engine, names, submission


@pytest.fixture(autouse=True)
def initialized(core: None) -> None:
    callbacks.start()


def start(values: np.ndarray, name: str | None, **options: Any) -> int:
    operand = values.ctypes.data, values.ctypes.data, values.shape, int(DataType.FLOAT32)
    world = core.WORLD
    return submission.submit(
        OperationKind.ALLREDUCE, "late", name, world, values, engine.submit, [operand], **options
    )


def test_a_callback_given_in_time_is_called_once() -> None:
    called: list[tuple[int, int, str]] = []
    is_called = threading.Event()

    def note(*what: Any) -> None:
        called.append(what)
        is_called.set()

    late = engine.LateCallback()
    values = np.ones(4, np.float32)
    if core.rank() > 0:  # rank 0 waits for the others
        core.barrier()
    handle = start(values, "one", callback=late)
    was_set = late.set(note)
    if core.rank() == 0:
        assert was_set or core.size() == 1
        core.barrier()
    if was_set:
        assert is_called.wait(30)
        assert called == [(handle, 0, "")]
    engine.wait(handle)
    engine.release(handle)
    assert values.tolist() == [core.size()] * 4


def test_a_callback_given_too_late_is_not_called() -> None:
    late = engine.LateCallback()
    handle = start(np.ones(4, np.float32), "two", callback=late)
    engine.wait(handle)
    # The wait may end a moment before the operation has nothing left to tell.
    core.barrier()
    assert not late.set(lambda *_: pytest.fail("it was called"))
    engine.release(handle)


def test_few_names_are_used_in_turn() -> None:
    names.set_round("late", 3)
    used = [names.next_unnamed("late", core.WORLD) for _ in range(7)]
    assert used[0] == used[3] == used[6]
    assert len(set(used)) == 3
