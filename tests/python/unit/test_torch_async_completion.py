"""Tests CUDA streams that wait in place of the host.

No GPU is needed, because CUDA and the engine are replaced by stand-ins.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from perseus.torch.horovod import async_completion, handles, tensors  # noqa: E402
from perseus.torch.horovod.elastic import TorchState  # noqa: E402
from perseus_core import HorovodInternalError  # noqa: E402

STREAM = 0x1000


class Believed:
    """Stands in for a CUDA tensor, with what these tests need."""

    def __init__(self, said: list[Any]) -> None:
        self.device = torch.device("cuda", 0)
        self._said = said

    def record_stream(self, stream: SimpleNamespace) -> None:
        self._said.append(("in use by", stream.cuda_stream))


class Engine:
    """Operations that are complete, or fail, when a test says so."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.complete: set[int] = set()
        self.errors: dict[int, Exception] = {}

    def poll(self, handle: int) -> int:
        return int(handle in self.complete)

    def error(self, handle: int) -> Exception | None:
        return self.errors.get(handle)

    def wait(self, handle: int) -> None:
        self.said.append(("waited", handle))
        self.complete.add(handle)
        if handle in self.errors:
            raise self.errors[handle]

    def wait_on_stream(self, handle: int, stream: int) -> None:
        self.said.append(("stream waits", handle, stream))
        if handle in self.complete and handle in self.errors:
            raise self.errors[handle]

    def kept(self, handle: int) -> Any:
        return self.memory[handle]

    def drop_kept(self, handle: int) -> None:
        self.said.append(("dropped", handle))

    def release(self, handle: int) -> None:
        self.said.append(("released", handle))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(handles, "engine", made)
    monkeypatch.setattr(async_completion, "engine", made)
    monkeypatch.setattr(async_completion, "_pending", deque())
    monkeypatch.setattr(async_completion, "_is_on", True)
    monkeypatch.setattr(handles, "_outputs", {})
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return made


def start(engine: Engine, handle: int) -> Believed:
    source, target = Believed(engine.said), Believed(engine.said)
    engine.memory[handle] = (source, target)
    handles.track(handle, target)
    return target


def test_it_is_off_unless_it_is_set(monkeypatch: pytest.MonkeyPatch):
    for variable, value, expected in [
        ("PERSEUS_ASYNC_COMPLETION", "1", True),
        ("HOROVOD_ENABLE_ASYNC_COMPLETION", "1", True),
        ("PERSEUS_ASYNC_COMPLETION", "0", False),
        ("PATH", "", False),
    ]:
        monkeypatch.setattr(async_completion, "_is_on", None)
        with monkeypatch.context() as environment:
            environment.setenv(variable, value)
            assert async_completion.is_on() is expected


def test_the_host_waits_by_default(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(async_completion, "_is_on", False)
    target = start(engine, 7)
    assert handles.finish(7) is target
    assert engine.said == [("waited", 7), ("released", 7)]


def test_the_current_stream_waits_and_memory_is_dropped_in_its_order(engine: Engine):
    target = start(engine, 7)
    assert handles.finish(7) is target
    in_use = ("in use by", STREAM)
    assert engine.said == [("stream waits", 7, STREAM), in_use, in_use, ("dropped", 7)]
    assert handles.finish(7) is None
    engine.complete.add(7)
    async_completion.raise_late_errors()
    assert engine.said[4:] == [("released", 7)]


@pytest.mark.parametrize("output", [None, [], torch.ones(1)], ids=["the engine's", "none", "cpu"])
def test_the_host_waits_for_what_no_stream_can(engine: Engine, output: Any):
    handles.track(7, output, lambda _: "made")
    assert handles.finish(7) == "made"
    assert engine.said == [("waited", 7), ("released", 7)]


def test_a_group_is_on_the_device_of_its_tensors(engine: Engine):
    tensors_of_group = [Believed(engine.said), Believed(engine.said)]
    engine.memory[7] = (tensors_of_group, tensors_of_group)
    handles.track(7, tensors_of_group)
    assert handles.finish(7) is tensors_of_group
    assert engine.said.count(("in use by", STREAM)) == 4


def test_an_error_at_the_wait_is_raised_there(engine: Engine):
    start(engine, 7)
    engine.complete.add(7)
    engine.errors[7] = HorovodInternalError("rank 1 has gone")
    with pytest.raises(HorovodInternalError, match="rank 1 has gone"):
        handles.finish(7)
    assert engine.said[-1] == ("released", 7)
    assert handles.finish(7) is None
    async_completion.raise_late_errors()


def test_a_later_error_is_raised_by_the_next_call_and_once(engine: Engine):
    for handle in (7, 8, 9):
        start(engine, handle)
    handles.finish(7)
    handles.finish(8)
    engine.complete |= {7, 8}
    engine.errors = {7: HorovodInternalError("first"), 8: HorovodInternalError("second")}
    with pytest.raises(HorovodInternalError, match="first"):
        handles.finish(9)
    assert engine.said[-2:] == [("released", 7), ("released", 8)]
    handles.finish(9)


def test_an_error_that_comes_before_the_call_returns_is_not_lost(engine: Engine):
    start(engine, 7)
    engine.wait_on_stream = lambda handle, stream: engine.complete.add(handle)
    engine.errors[7] = HorovodInternalError("late")
    handles.finish(7)
    with pytest.raises(HorovodInternalError, match="late"):
        async_completion.raise_late_errors()


def test_settle_waits_for_all_and_raises_the_first_error(engine: Engine):
    for handle in (7, 8, 9):
        start(engine, handle)
        handles.finish(handle)
    engine.errors[8] = HorovodInternalError("second")
    with pytest.raises(HorovodInternalError, match="second"):
        async_completion.wait_for_all()
    assert not async_completion._pending
    async_completion.wait_for_all()


def test_nothing_void_is_saved(engine: Engine):
    state = TorchState(step=1)
    start(engine, 7)
    handles.finish(7)
    engine.errors[7] = HorovodInternalError("void")
    state.step = 2
    with pytest.raises(HorovodInternalError, match="void"):
        state.save()
    state.restore()
    assert state.step == 1


def test_what_nobody_asks_for_any_more_is_warned_of(engine: Engine):
    start(engine, 7)
    handles.finish(7)
    engine.complete.add(7)
    engine.errors[7] = HorovodInternalError("rank 1 has gone")
    with pytest.warns(UserWarning, match="may be invalid: rank 1 has gone"):
        async_completion.warn_of_late_errors()
    async_completion.warn_of_late_errors()


def test_storages_are_marked_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    marked = []
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: marked.append((tensor.data_ptr(), tensor.nbytes, stream)),
        raising=False,
    )
    first, second = torch.ones(10), torch.ones(2, 3)
    tensors.record_stream("stream", [first[3:].untyped_storage(), second])
    assert marked == [(first.data_ptr(), 40, "stream"), (second.data_ptr(), 24, "stream")]
