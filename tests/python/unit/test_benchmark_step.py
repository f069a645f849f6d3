"""Tests what benchmarks/step.py and hosts.py do in each rank, and how they find a connection."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def step() -> ModuleType:
    return importlib.import_module("contest.works.step")


class TwinContender:
    """Stands in for two ranks that submit the same: a sum doubles. Records what it was given."""

    def __init__(self, factor: float = 2) -> None:
        self.size = 2
        self.factor = factor
        self.submitted: list[tuple[str, int, int]] = []

    def tensor(self, elements: int) -> Any:
        return np.ones(elements, np.float32)

    def fill(self, tensor: Any, value: float) -> None:
        tensor.fill(value)

    def allreduce_async(self, tensor: Any, name: str, priority: int) -> Any:
        self.submitted.append((name, tensor.size, priority))
        return tensor

    def wait(self, handle: Any) -> None:
        handle *= self.factor

    def barrier(self) -> None:
        pass


def test_every_gradient_goes_once_a_step_and_in_the_order_of_backward(
    step: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_PRIORITY", "1")
    contender = TwinContender()
    # One to check, one before the first measured step.
    assert len(step.steps(contender, iterations=1, name="googlenet", slowdown=1e-3)) == 1
    assert len(contender.submitted) == 3 * 173
    priorities = [priority for _, _, priority in contender.submitted[:173]]
    assert priorities == list(range(-172, 1))
    assert contender.submitted[0] == ("googlenet.fc.bias", 1000, -172)


@pytest.mark.parametrize("bucket", ["0", "25"])
def test_a_wrong_sum_is_noticed(
    step: ModuleType, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    monkeypatch.setenv("STEP_BUCKET_MB", bucket)
    step.gradients(TwinContender(), iterations=1, name="googlenet")
    with pytest.raises(ArithmeticError, match=r"element 0 is 3, not 2"):
        step.gradients(TwinContender(factor=3), iterations=1, name="googlenet")


def test_buckets_hold_all_gradients_and_the_first_is_small(
    step: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_BUCKET_MB", "25")
    contender = TwinContender()
    step.gradients(contender, iterations=1, name="resnet50", warm_up=0)
    sizes = [elements for _, elements, _ in contender.submitted]
    assert sum(sizes) == 2 * 25_557_032  # checked, then measured
    assert 1e6 <= 4 * sizes[0] < 25e6
    assert min(sizes[1 : len(sizes) // 2 - 1]) * 4 >= 25e6


def test_what_took_less_than_its_bound_is_found() -> None:
    training_step = importlib.import_module("contest.training_step")
    rows = [{"exposed": exposed, "bound": 2.0} for exposed in (1.9, 2.0, 2.1, None)]
    assert training_step.below_bound(rows) == rows[:1]


def test_a_cap_on_frames_leaves_less_for_payload() -> None:
    lab = importlib.import_module("contest.lab")
    assert lab.Lab(2, link_mbit=1000).payload_mbit() == pytest.approx(956.4, abs=0.1)
    assert lab.Lab(2).payload_mbit() is None


def test_windows_of_time_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_sockets = importlib.import_module("contest.plain_sockets")
    monkeypatch.setattr(plain_sockets, "PIECE", 1000)
    monkeypatch.setattr(plain_sockets, "WINDOW", 0.25)
    moments = iter([0.9, 1.0, 1.2, 1.3, 1.6])  # two windows, from 1.0 to 1.5
    monkeypatch.setattr(plain_sockets.time, "monotonic", lambda: next(moments))
    receiver = plain_sockets.Receiver(begin=1.0, windows=2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(bytes(5000))
        theirs.shutdown(socket.SHUT_WR)
        receiver.receive(ours)
    assert receiver.mbit() == pytest.approx([2000 * 8e-6 / 0.25, 1000 * 8e-6 / 0.25])


def test_a_connection_is_read_from_what_ss_prints() -> None:
    lab = importlib.import_module("contest.lab")
    text = (
        '0 0 10.86.0.1:51234 10.86.0.2:40001 users:(("python",pid=12,fd=9),("python",pid=13,fd=9)) '
        "ts sack cubic bytes_sent:4096 bytes_acked:4000\n"
        '0 0 10.86.0.1:40002 10.86.0.3:51236 users:(("python",pid=12,fd=8)) cubic\n'
        '0 0 127.0.0.1:5000 127.0.0.1:6000 users:(("python",pid=12,fd=7)) bytes_sent:1\n'
    )
    assert lab.parse_connections(text) == [
        lab.Connection(51234, "10.86.0.2", 40001, 4096, frozenset({12, 13})),
        lab.Connection(40002, "10.86.0.3", 51236, 0, frozenset({12})),
    ]
