"""Callbacks of futures may wait: they hold up nothing but themselves."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch_groups import group, rank, size

import perseus.torch.horovod as hvd
from perseus.torch.ddp import allreduce_hook

__all__ = ["group"]  # which every test uses

pytestmark = pytest.mark.timeout(60)

LIMIT = 30  # seconds, for what must not wait at all


def reduced_behind(late: int, use: Callable[[dist.Work], None]) -> None:
    """Runs an all_reduce of ones; other ranks call `use` on it before rank `late` takes part."""
    if rank() != late:
        use(dist.all_reduce(torch.ones(3), async_op=True))
        dist.barrier()
    else:
        dist.barrier()
        use(dist.all_reduce(torch.ones(3), async_op=True))


def late_ranks() -> Iterator[int]:
    return iter(range(size()))


def ones_reduced_within(levels: int) -> torch.Tensor:
    """Runs one all_reduce for each level, each in a callback of the previous one, which waits."""

    def deeper(future: torch.futures.Future) -> torch.Tensor:
        below = ones_reduced_within(levels - 1) if levels > 1 else 0
        return future.value()[0] + below

    return dist.all_reduce(torch.ones(3), async_op=True).get_future().then(deeper).wait()


def test_callbacks_that_wait_for_collectives_several_levels_deep() -> None:
    for late in late_ranks():
        futures = []

        def use(work: dist.Work, futures: list = futures) -> None:
            futures.append(work.get_future().then(lambda _: ones_reduced_within(5)))

        reduced_behind(late, use)
        assert futures[0].wait().tolist() == [5.0 * size()] * 3


def test_a_chain_of_callbacks_that_each_wait_for_a_collective() -> None:
    def again(future: torch.futures.Future) -> torch.Tensor:
        value = future.value()
        tensor = torch.ones(3) + (value[0] if isinstance(value, list) else value)
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    expected = float(size())
    for _ in range(4):
        expected = (1 + expected) * size()
    for late in late_ranks():
        futures = []

        def use(work: dist.Work, futures: list = futures) -> None:
            futures.append(work.get_future().then(again).then(again).then(again).then(again))

        reduced_behind(late, use)
        assert futures[0].wait().tolist() == [expected] * 3


def test_a_callback_that_waits_holds_up_no_other_operation() -> None:
    if size() == 1:
        pytest.skip("where all_reduce is complete at once, the callback runs in then")
    for late in late_ranks():
        go_on = threading.Event()
        works, futures = [], []

        def use(work: dist.Work, futures=futures, works=works, late=late, go_on=go_on) -> None:
            works.append(work)
            if rank() != late:
                futures.append(work.get_future().then(lambda _: go_on.wait(LIMIT)))

        reduced_behind(late, use)
        works[0].wait()  # though its callback is not over
        for other in [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(20)]:
            other.wait()
        go_on.set()
        assert all(future.wait() for future in futures)


def test_a_callback_may_wait_for_its_own_operation() -> None:
    for late in late_ranks():
        futures = []

        def use(work: dist.Work, futures: list = futures) -> None:
            futures.append(work.get_future().then(lambda _: work.wait()))

        reduced_behind(late, use)
        assert futures[0].wait() is True


def test_a_callback_gets_the_error() -> None:
    if size() == 1:
        pytest.skip("needs ranks that can differ")
    work = dist.all_reduce(torch.ones(2 + rank()), async_op=True)
    seen = work.get_future().then(lambda future: future.value())
    with pytest.raises(RuntimeError, match="must submit the same shape"):
        seen.wait()
    dist.barrier()


def test_the_future_of_what_is_complete() -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    threads = work.get_future().then(lambda _: threading.current_thread())
    assert work.get_future().done()
    assert threads.wait() is threading.current_thread()


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 5)
    ).double()


def trains_as_one_process_does(state: object, hook: Callable) -> None:
    plain = network()
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    model.register_comm_hook(state, hook)
    ours = torch.optim.SGD(model.parameters(), lr=0.05)
    alone = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(size() * 20, 8, dtype=torch.float64, generator=generator)
        for net, optimizer, part in ((model, ours, x.chunk(size())[rank()]), (plain, alone, x)):
            optimizer.zero_grad()
            net(part).square().mean().backward()
            optimizer.step()
    for param, expected in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("keeps_state", [False, True])
def test_ddp_with_powersgd_of_full_rank(keeps_state: bool) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=12,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,  # below 1: also what does not get smaller
        use_error_feedback=keeps_state,
        warm_start=keeps_state,
    )
    trains_as_one_process_does(state, powerSGD_hook.powerSGD_hook)
    before, after = state.compression_stats()[1:]
    assert before != after  # weights have gone as P and Q


def test_ddp_with_a_callback_after_our_hook_that_waits() -> None:
    def averaged_again(process_set, bucket):
        def again(future: torch.futures.Future) -> torch.Tensor:
            work = dist.all_reduce(future.value(), async_op=True)
            return work.get_future().wait()[0].div_(size())

        return allreduce_hook(process_set, bucket).then(again)

    # DDP wants types, and no strings.
    averaged_again.__annotations__ = {
        "bucket": dist.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    trains_as_one_process_does(hvd.global_process_set, averaged_again)
