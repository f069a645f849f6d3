"""Tests what the engine is told about the place of a tensor. No GPU is needed: CUDA is faked."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from perseus.torch import c10d_operations  # noqa: E402
from perseus.torch.horovod import tensors  # noqa: E402
from perseus.torch.horovod.buckets import _is_elsewhere  # noqa: E402
from perseus_core import DataType  # noqa: E402

STREAMS = {0: 0x1000, 1: 0x2000}


class Believed:
    """The parts of a tensor that say what it is and where."""

    dtype, layout, shape = torch.float32, torch.strided, (4,)

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self.is_cpu, self.is_cuda = False, True

    def data_ptr(self) -> int:
        return 0x3000


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def current_stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=STREAMS[device.index])

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)


def test_cpu_tensors_need_no_place():
    assert tensors.described([], []) == ([], None)
    one, two = torch.ones(1), torch.ones(2)
    operands, place = tensors.described([one, two], [None, two])
    assert operands == [
        (one.data_ptr(), 0, (1,), DataType.FLOAT32),
        (two.data_ptr(), two.data_ptr(), (2,), DataType.FLOAT32),
    ]
    assert place is None
    assert tensors.in_memory(one, one, DataType.FLOAT32) == (
        (one.data_ptr(), one.data_ptr(), (1,), DataType.FLOAT32),
        (),
    )


def test_a_cuda_tensors_place_is_its_device_and_the_current_stream(cuda: None):
    operands, place = tensors.described([Believed(1), Believed(1)], [])
    assert operands == [(0x3000, 0, (4,), DataType.FLOAT32)] * 2
    assert place == (1, 1, STREAMS[1])
    # The last arguments of submit_allreduce: no codec, no callback, the place.
    _, after_priority = tensors.in_memory(Believed(0), Believed(0), DataType.FLOAT32)
    assert after_priority == (0, None, 1, 0, STREAMS[0])


@pytest.mark.parametrize(
    ("group", "named"),
    [
        ([Believed(0), Believed(1)], ("cuda:0", "cuda:1")),
        ([torch.ones(1), Believed(1)], ("cpu", "cuda:1")),
        ([Believed(0), torch.ones(1)], ("cuda:0", "cpu")),
    ],
)
def test_a_group_on_several_devices_is_refused_with_both_named(cuda: None, group, named):
    with pytest.raises(ValueError, match=f"on {named[0]} and on {named[1]}"):
        tensors.described(group, [])
    with pytest.raises(ValueError, match=f"on {named[0]} and on {named[1]}"):
        tensors.described(group[:1], group[1:])


def test_runs_of_small_gradients_end_where_the_device_changes():
    names = {param: f"layer.{i}" for i, param in enumerate([Believed(0), Believed(0), Believed(1)])}
    first, second, elsewhere = names
    assert not _is_elsewhere(names, [first], second)
    assert _is_elsewhere(names, [first], elsewhere)


def test_tensors_elsewhere_are_refused_by_name_of_their_device():
    with pytest.raises(ValueError, match="on meta"):
        tensors.contiguous(torch.empty(3, device="meta"))


def test_results_that_are_copied_on_a_stream_of_their_own_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
):
    said = []

    @contextlib.contextmanager
    def within(stream):
        said.append("in the stream")
        yield
        said.append("out of the stream")

    def stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: said.append("synchronized"))

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(c10d_operations._copy_streams, "by_device", {}, raising=False)
    for tensor in (Believed(0), torch.ones(1)):
        c10d_operations.complete([], lambda _: said.append("copied"), [tensor], seconds=1)
    assert said[:4] == ["in the stream", "copied", "out of the stream", "synchronized"]
    assert said[4:] == ["copied"]  # of the tensor in CPU memory
