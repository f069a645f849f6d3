"""A mistake that one rank makes alone is an error on every rank, and the job goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest
from single_rank_errors import fails_everywhere, faulty_ranks

import perseus_core as perseus
from perseus_core import MismatchError, ReduceOp, names

# The stall report would say what is wrong only after a minute.
pytestmark = [pytest.mark.usefixtures("core"), pytest.mark.timeout(60)]

KINDS = ["allreduce", "grouped_allreduce", "broadcast", "allgather", "alltoall", "reducescatter"]


def own(rank: int | None = None) -> np.ndarray:
    rank = perseus.rank() if rank is None else rank
    return np.arange(2.0 * perseus.size()) * (rank + 1)


def arguments(kind: str) -> dict:
    if kind == "grouped_allreduce":
        return {"arrays": [own(), own()], "op": ReduceOp.SUM}
    more = {
        "allreduce": {"op": ReduceOp.SUM},
        "broadcast": {"root": 0},
        "alltoall": {"splits": [2] * perseus.size()},
        "reducescatter": {"op": ReduceOp.SUM},
    }
    return {"array": own(), **more.get(kind, {})}


def call(kind: str, name: str | None = None, **wrong):
    return getattr(perseus, kind)(**{**arguments(kind), "name": name, **wrong})


def start(kind: str, name: str | None = None, **wrong):
    return getattr(perseus, f"{kind}_async")(**{**arguments(kind), "name": name, **wrong})


def check(kind: str, result) -> None:
    size, rank = perseus.size(), perseus.rank()
    total = sum(own(r) for r in range(size))
    mine = slice(2 * rank, 2 * rank + 2)
    expected = {
        "allreduce": total,
        "grouped_allreduce": [total, total],
        "broadcast": own(0),
        "allgather": np.concatenate([own(r) for r in range(size)]),
        "alltoall": np.concatenate([own(r)[mine] for r in range(size)]),
        "reducescatter": total[mine],
    }
    if kind == "alltoall":
        result, received = result
        assert received == [2] * size
    np.testing.assert_array_equal(result, expected[kind])


def goes_on(kind: str, name: str | None) -> None:
    """Checks that named and unnamed calls of the kind return correct results on all ranks."""
    for each in (name, None, name, None):
        check(kind, call(kind, each))


# kind, the arguments that are wrong, what the faulty rank raises, what all ranks are told
MISTAKES = [
    ("allreduce", lambda: {"array": own().astype(np.complex64)}, TypeError, "complex64"),
    ("allreduce", lambda: {"array": object()}, TypeError, "object"),
    ("allreduce", lambda: {"op": 99}, ValueError, "99"),
    ("allreduce", lambda: {"op": "sum"}, TypeError, "op is 'sum'"),
    ("allreduce", lambda: {"prescale": "half"}, TypeError, "prescale is 'half'"),
    ("allreduce", lambda: {"postscale": float("inf")}, ValueError, "postscale"),
    ("allreduce", lambda: {"priority": 0.5}, TypeError, r"priority is 0\.5"),
    ("allreduce", lambda: {"priority": 2**40}, ValueError, "priority is 1099511627776"),
    ("allreduce", lambda: {"codec": 77}, ValueError, "codec 77"),
    ("allreduce", lambda: {"codec": "fp16"}, TypeError, "codec is 'fp16'"),
    ("allreduce", lambda: {"out": np.ones(1)}, ValueError, "out is float64"),
    ("allreduce", lambda: {"out": np.broadcast_to(1.0, own().shape)}, ValueError, "read-only"),
    ("grouped_allreduce", lambda: {"arrays": [own(), own() * 1j]}, TypeError, "complex128"),
    ("grouped_allreduce", lambda: {"arrays": 3}, TypeError, "iterable"),
    ("grouped_allreduce", lambda: {"arrays": []}, ValueError, "at least one"),
    ("broadcast", lambda: {"root": perseus.size()}, ValueError, "root rank"),
    ("broadcast", lambda: {"root": "0"}, TypeError, "root is '0'"),
    ("broadcast", lambda: {"out": np.ones((2, 2))}, ValueError, "out is"),
    ("allgather", lambda: {"array": own() * 1j}, TypeError, "complex128"),
    ("alltoall", lambda: {"splits": [3] * perseus.size()}, ValueError, "splits add up to"),
    ("alltoall", lambda: {"splits": [0] * (perseus.size() + 1)}, ValueError, "splits were given"),
    ("alltoall", lambda: {"splits": [-1] * perseus.size()}, ValueError, "0 or more"),
    ("alltoall", lambda: {"splits": [2.0] * perseus.size()}, ValueError, "whole number"),
    ("alltoall", lambda: {"splits": [2**70] * perseus.size()}, ValueError, "whole number"),
    ("alltoall", lambda: {"splits": 2}, ValueError, "splits is 2"),
    ("alltoall", lambda: {"array": own() * 1j}, TypeError, "complex128"),
    ("reducescatter", lambda: {"array": np.float32(1)}, ValueError, "scalar"),
    ("reducescatter", lambda: {"op": -1}, ValueError, "-1"),
]


@pytest.mark.parametrize("name", [None, "lone"])
@pytest.mark.parametrize("kind, wrong, error, reason", MISTAKES)
def test_every_rank_gets_an_error_and_the_job_goes_on(kind, wrong, error, reason, name):
    for faulty in faulty_ranks():
        fails_everywhere(
            [faulty], lambda: call(kind, name, **wrong()), lambda: call(kind, name), error, reason
        )
        goes_on(kind, name)


@pytest.mark.parametrize("name", [None, "all"])
@pytest.mark.parametrize("kind, wrong, error, reason", MISTAKES)
def test_a_mistake_of_all_ranks(kind, wrong, error, reason, name):
    everyone = range(perseus.size())
    for _ in range(2):
        fails_everywhere(everyone, lambda: call(kind, name, **wrong()), None, error, reason)
    goes_on(kind, name)


def test_a_callback_that_cannot_be_called():
    fails_everywhere(
        [0],
        lambda: start("allreduce", callback=3).wait(),
        lambda: call("allreduce"),
        TypeError,
        "callback is int",
    )
    goes_on("allreduce", "callback")


BAD = {
    "allreduce": {"op": 99},
    "grouped_allreduce": {"arrays": ["text"]},
    "broadcast": {"root": -1},
    "allgather": {"array": "text"},
    "alltoall": {"splits": [0.5]},
    "reducescatter": {"array": "text"},
}


@pytest.mark.parametrize("name", [None, "again"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_faulty_rank_tries_again_at_once(kind, name):
    """Its second call is not taken for the others' first."""
    for faulty in faulty_ranks():
        if perseus.rank() == faulty:
            with pytest.raises((TypeError, ValueError)):
                call(kind, name, **BAD[kind])
        else:
            handle = start(kind, name)
            with pytest.raises(MismatchError):
                handle.wait()
        check(kind, call(kind, name))
    goes_on(kind, name)


@pytest.mark.parametrize("name", [None, "row"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_mistakes_in_a_row(kind, name):
    faulty = perseus.size() - 1
    for _ in range(3):
        if perseus.rank() == faulty:
            with pytest.raises((TypeError, ValueError)):
                call(kind, name, **BAD[kind])
        else:
            with pytest.raises(MismatchError, match=f"rank {faulty} "):
                call(kind, name)
    goes_on(kind, name)


@pytest.mark.parametrize("name", [None, "turns"])
def test_each_rank_in_turn(name):
    for faulty in range(perseus.size()):
        fails_everywhere(
            [faulty],
            lambda: call("allreduce", name, op=99),
            lambda: call("allreduce", name),
            ValueError,
            "99",
        )
    goes_on("allreduce", name)


def test_several_ranks_with_mistakes_of_their_own():
    if perseus.size() < 3:
        pytest.skip("needs a rank that makes none")
    wrong = {0: {"op": 99}, 1: {"array": "text"}}.get(perseus.rank())
    if wrong is None:
        with pytest.raises(MismatchError, match=r"rank [01] could not take part"):
            call("allreduce", "own")
    else:
        with pytest.raises((TypeError, ValueError)):
            call("allreduce", "own", **wrong)
    goes_on("allreduce", "own")


def test_what_else_is_in_flight_is_not_touched():
    before = [start("allreduce", f"flight.{i}") for i in range(10)]
    fails_everywhere(
        [0],
        lambda: call("allreduce", "flight.bad", op=99),
        lambda: call("allreduce", "flight.bad"),
        ValueError,
        "99",
    )
    after = [start("allreduce", f"flight.{i}") for i in range(10, 20)]
    for handle in [*before, *after]:
        check("allreduce", handle.wait())


def test_ranks_that_come_to_the_mistake_in_different_orders(two_ranks):
    order = [f"order.{i}" for i in range(8)]
    if perseus.rank() == 0:
        handles = {}
        for i, name in enumerate(order):
            if i % 2:
                with pytest.raises(ValueError):
                    start("allreduce", name, op=99)
            else:
                handles[name] = start("allreduce", name)
    else:
        handles = {name: start("allreduce", name) for name in reversed(order)}
    for i, name in enumerate(order):
        if i % 2 == 0:
            check("allreduce", handles[name].wait())
        elif perseus.rank() != 0:
            with pytest.raises(MismatchError, match=f"rank 0 .*{name}"):
                handles[name].wait()
    goes_on("allreduce", "order.1")


def test_a_mistake_of_both_kinds():
    """One rank's wrong argument, where the others also differ among themselves."""
    if perseus.size() < 3:
        pytest.skip("needs two ranks that can differ beside the faulty one")
    if perseus.rank() == 0:
        with pytest.raises(ValueError):
            call("allreduce", "both", op=99)
    else:
        with pytest.raises(MismatchError):
            call("allreduce", "both", array=np.ones(perseus.rank()))
    goes_on("allreduce", "both")


@pytest.mark.parametrize("seed", range(4))
def test_mistakes_among_many_calls_in_flight(seed):
    """The ranks draw the same calls and culprits, and submit them in orders of their own."""
    shared = random.Random(seed)
    own_order = random.Random(f"{seed}.{perseus.rank()}")
    size, rank = perseus.size(), perseus.rank()
    for batch in range(10):
        calls = []
        for i in range(shared.randrange(1, 20)):
            faulty = {r for r in range(size) if shared.random() < 0.15}
            calls.append((f"mix.{i}", shared.choice(KINDS), faulty))
        handles = {}
        for name, kind, faulty in own_order.sample(calls, len(calls)):
            if rank in faulty:
                with pytest.raises((TypeError, ValueError)):
                    start(kind, name, **BAD[kind])
            else:
                handles[name] = start(kind, name)
        for name, kind, faulty in calls:
            if rank in faulty:
                continue
            if faulty:
                with pytest.raises(MismatchError, match=f"{kind.removeprefix('grouped_')}.*{name}"):
                    handles[name].wait()
            else:
                check(kind, handles[name].wait())
        if batch % 3 == 0:
            check("allreduce", call("allreduce"))


@pytest.mark.parametrize("name", [None, "joined"])
def test_while_a_rank_has_joined(two_ranks, name):
    joined = perseus.size() - 1
    if perseus.rank() != joined:
        fails_everywhere(
            [0],
            lambda: call("allreduce", name, op=99),
            lambda: call("allreduce", name),
            ValueError,
            "99",
        )
        total = sum(own(rank) for rank in range(joined))
        np.testing.assert_array_equal(call("allreduce", name), total)
    assert 0 <= perseus.join() < perseus.size()
    goes_on("allgather", name)


class TestProcessSets:
    @pytest.fixture
    def number(self, two_ranks):
        """A set of two ranks."""
        members = [0, perseus.size() - 1]
        if perseus.size() == 2:
            pytest.skip("two ranks of two are the world")
        number = perseus.add_process_set(members)
        yield number
        perseus.remove_process_set(number)

    @pytest.mark.parametrize("name", [None, "in.set"])
    def test_only_its_members_fail(self, number, name):
        world = start("allreduce", name)
        if perseus.process_set_rank(number) >= 0:
            for _ in range(2):
                fails_everywhere(
                    [0],
                    lambda: call("allreduce", name, process_set=number, op=99),
                    lambda: call("allreduce", name, process_set=number),
                    ValueError,
                    "99",
                )
            for each in (name, None):
                total = own(0) + own(perseus.size() - 1)
                result = call("allreduce", each, process_set=number)
                np.testing.assert_array_equal(result, total)
        check("allreduce", world.wait())
        goes_on("allreduce", name)

    def test_a_root_that_is_in_the_world_alone(self, number):
        if perseus.process_set_rank(number) >= 0:
            fails_everywhere(
                [0],
                lambda: call("broadcast", "root", process_set=number, root=1),
                lambda: call("broadcast", "root", process_set=number),
                ValueError,
                "root rank 1 does not belong",
            )
        goes_on("broadcast", "root")

    def test_calls_of_a_rank_outside_concern_nobody(self, number):
        if perseus.rank() == 1:
            for wrong in ({}, {"op": 99}, {"array": "text"}):
                with pytest.raises((TypeError, ValueError)):
                    call("allreduce", process_set=number, **wrong)
        elif perseus.process_set_rank(number) >= 0:
            result = call("allreduce", process_set=number)
            np.testing.assert_array_equal(result, own(0) + own(perseus.size() - 1))
        goes_on("allreduce", "outside")


def test_calls_on_a_set_that_is_made_later_do_not_count(two_ranks):
    if perseus.size() == 2:
        later = perseus.add_process_set([1]) + 1
        members = [0]
    else:
        later = perseus.add_process_set([0]) + 1
        members = [1, 2]
    if perseus.rank() == members[0]:
        for wrong in ({}, {"array": "text"}):
            with pytest.raises((TypeError, ValueError)):
                call("allreduce", process_set=later, **wrong)
    number = perseus.add_process_set(members)
    assert number == later
    if perseus.rank() in members:
        result = call("allreduce", process_set=number)
        np.testing.assert_array_equal(result, sum(own(rank) for rank in members))
    perseus.remove_process_set(number)
    perseus.remove_process_set(number - 1)


def test_unnamed_calls_stay_in_step_beyond_the_round(monkeypatch):
    """Numbers of unnamed calls go round; mistakes must take theirs there, too."""
    monkeypatch.setattr(names, "ROUND", 8)
    faulty = perseus.size() - 1
    for i in range(40):
        if i % 5 == 3:
            fails_everywhere(
                [faulty],
                lambda: perseus.allreduce("text"),
                lambda: perseus.allreduce(np.ones(1)),
                TypeError,
                "str",
            )
        else:
            assert perseus.allreduce(np.array([float(i)]))[0] == i
