"""hvd.elastic without an elastic launcher: commits, restores, resets, and the sampler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import perseus.torch.horovod as hvd
from perseus.common.elastic import HostUpdateResult, run_fn
from perseus.common.exceptions import HostsUpdatedInterrupt
from perseus.torch.horovod.elastic.state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    hvd.init()
    yield


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 2)


def trained(steps: int, fail_at: tuple[int, ...] = ()) -> torch.nn.Module:
    """SGD with momentum on data of the step and rank, through failures and resets."""
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    failures = set(fail_at)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> int:
        while state.step < steps:
            generator = torch.Generator().manual_seed(100 * state.step + hvd.rank())
            x = torch.randn(8, 4, generator=generator)
            state.optimizer.zero_grad()
            state.model(x).square().sum().backward()
            state.optimizer.step()
            if state.step in failures:
                # After the parameters have changed: the step must be undone.
                failures.remove(state.step)
                raise hvd.HorovodInternalError("a rank was lost")
            state.step += 1
            state.commit()
        return state.step

    assert train(state) == steps
    assert resets == [hvd.size()] * len(fail_at)
    return model


def test_training_through_failures_ends_as_without() -> None:
    through, without = trained(6, fail_at=(0, 3, 5)), trained(6)
    for ours, expected in zip(through.parameters(), without.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_other_exceptions_go_through() -> None:
    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        train(hvd.elastic.TorchState())


def test_resets_that_fail_in_a_row_end_in_their_error() -> None:
    calls: list[str] = []

    def reset() -> None:
        calls.append("reset")
        if len(calls) > 1:
            raise hvd.HorovodInternalError(f"reset {len(calls)} failed")

    def train(state: hvd.elastic.TorchState) -> None:
        raise hvd.HorovodInternalError("a rank was lost")

    last = 1 + hvd.size()
    with pytest.raises(hvd.HorovodInternalError, match=f"reset {last} failed"):
        run_fn(train, reset)(hvd.elastic.TorchState())
    assert len(calls) == last


def test_a_sync_that_fails_leaves_what_was_saved() -> None:
    class Lost:
        pass

    class LostHandler(StateHandler[Lost]):
        def save(self) -> None:
            pass

        def restore(self) -> None:
            pass

        def sync(self) -> None:
            raise hvd.HorovodInternalError("a rank was lost")

    before = get_handler_registry()
    set_handler_registry([*before, (Lost, LostHandler)])
    try:
        state = hvd.elastic.TorchState(model_of(hvd.rank()), step=hvd.rank(), lost=Lost())
    finally:
        set_handler_registry(before)
    with pytest.raises(hvd.HorovodInternalError):
        state.sync()
    state.restore()
    assert state.step == hvd.rank()
    torch.testing.assert_close(state.model.weight, model_of(hvd.rank()).weight, rtol=0, atol=0)


def test_sync_gives_rank_0_s_present_model_and_attributes() -> None:
    model = model_of(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    state = hvd.elastic.TorchState(model, optimizer, epoch=hvd.rank(), batch=[hvd.rank()])
    state.epoch = 10 + hvd.rank()
    state.save()
    state.epoch = 20 + hvd.rank()
    state.sync()
    assert (state.epoch, state.batch) == (20, [0])
    assert optimizer.param_groups[0]["lr"] == 0.1
    for ours, expected in zip(model.parameters(), model_of(0).parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    # restore goes back to the synced state.
    with torch.no_grad():
        model.weight.zero_()
    state.epoch = 30
    state.restore()
    assert state.epoch == 20
    torch.testing.assert_close(model.weight, model_of(0).weight, rtol=0, atol=0)


def test_an_assigned_model_takes_the_place_of_the_old_one() -> None:
    state = hvd.elastic.TorchState(model_of(1))
    state.model = model_of(2)
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    torch.testing.assert_close(state.model.weight, model_of(2).weight)


def test_changes_of_the_hosts_that_rank_0_hears_of_interrupt_all_ranks() -> None:
    state = hvd.elastic.TorchState(step=0)
    state.commit()
    state.on_hosts_updated(1 if hvd.rank() == 0 else 5, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync
    state.commit()  # heard once
    if hvd.rank() == 0:
        state.on_hosts_updated(2, HostUpdateResult.removed)
        state.on_hosts_updated(3, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync
    state.on_reset()


def test_handlers_can_be_registered() -> None:
    class Counter:
        value = 0

    class CounterHandler(StateHandler[Counter]):
        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.value.value = hvd.broadcast_object(self.value.value)

    before = get_handler_registry()
    set_handler_registry([*before, (Counter, CounterHandler)])
    try:
        counter = Counter()
        counter.value = hvd.rank() + 7
        state = hvd.elastic.TorchState(counter=counter)
        state.sync()
        assert counter.value == 7
        state.save()
        counter.value = 9
        state.restore()
        assert counter.value == 7
    finally:
        set_handler_registry(before)
    assert get_handler_registry()[0] == (torch.nn.Module, ModelStateHandler)


@pytest.mark.parametrize("length", [0, 1, 5, 24, 31])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_sampler_deals_everything_that_is_left(length: int, shuffle: bool) -> None:
    data = list(range(length))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=shuffle)
    assert len(sampler) == -(-length // hvd.size())
    parts = hvd.allgather_object(list(sampler))
    assert len({len(part) for part in parts}) == 1
    assert sorted({i for part in parts for i in part}) == data
    # In the middle of the epoch, as if begun anew.
    sampler.record_batch(0, 2)
    done = min(2 * hvd.size(), length)
    again = hvd.elastic.ElasticSampler(data, shuffle=shuffle)
    again.load_state_dict(sampler.state_dict())
    left = {i for part in hvd.allgather_object(list(again)) for i in part}
    assert len(left) == length - done
    first = {i for part in parts for i in part[:2]}
    if length >= 2 * hvd.size():
        assert left.isdisjoint(first)
    again.set_epoch(1)
    assert len(again.remaining_indices) == length
    if shuffle and length > 4:
        assert again.remaining_indices != sampler.remaining_indices


@pytest.mark.parametrize("last_round", ["short", "carry"])
def test_the_last_round_is_short_or_is_carried_over(last_round: str) -> None:
    length = 3 * hvd.size() + 1
    sampler = hvd.elastic.ElasticSampler(range(length), last_round=last_round)
    seen: list[int] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen += [i for part in hvd.allgather_object(list(sampler)) for i in part]
        sampler.record_batch(0, 4)
    sampler.set_epoch(2)
    left = sampler.remaining_indices[: 2 * length - len(seen)]
    assert sorted([*seen, *left]) == sorted(2 * list(range(length)))
    assert len(left) == (2 % hvd.size() if last_round == "carry" else 0)


def test_ranks_record_the_indices_that_each_has_processed() -> None:
    sampler = hvd.elastic.ElasticSampler(range(20))
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_indices(range(3 * hvd.rank(), 4 * hvd.rank()))
    state.commit()
    sampler.record_indices([19] if hvd.rank() == 0 else [])
    recorded = {i for rank in range(hvd.size()) for i in range(3 * rank, 4 * rank)}
    assert sampler.processed_indices == recorded | {19}
    state.restore()
    assert sorted(sampler.remaining_indices) == sorted(set(range(20)) - recorded)
    # Another job goes on from it.
    other = hvd.elastic.ElasticSampler(range(20))
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(sampler)


def test_ranks_that_have_counted_apart_join_their_progress() -> None:
    sampler = hvd.elastic.ElasticSampler(range(100))
    state = hvd.elastic.TorchState(sampler=sampler, epoch=0)
    sampler.record_batch(0, 1 + hvd.rank())
    state.save()
    state.join_progress()
    furthest = hvd.size() ** 2
    assert sampler.processed_num == furthest
    # It is the commit that was joined.
    state.restore()
    assert len(sampler.remaining_indices) == 100 - furthest


def test_ranks_with_other_samples_do_not_join() -> None:
    data = range(100 + (hvd.rank() == hvd.size() - 1))
    state = hvd.elastic.TorchState(sampler=hvd.elastic.ElasticSampler(data))
    if hvd.size() == 1:
        state.join_progress()
        return
    message = rf"length .* is 101 on rank {hvd.size() - 1}; it must be 100, as on rank 0"
    with pytest.raises(ValueError, match=message):
        state.join_progress()


def test_a_loader_goes_on_in_the_middle_of_an_epoch() -> None:
    data = list(range(6 * hvd.size()))
    sampler = hvd.elastic.ElasticSampler(data, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler)
    seen = []
    for i, batch in enumerate(loader):
        seen += batch.tolist()
        sampler.record_batch(i, 2)
        if i == 0:
            state.commit()
            kept = [*seen]
    state.restore()
    state.on_reset()
    sampler.set_epoch(0)
    for batch in loader:
        kept += batch.tolist()
    assert len(kept) == 6
    assert sorted(i for part in hvd.allgather_object(kept) for i in part) == data


def test_learning_rate_schedulers_have_a_handler() -> None:
    optimizer = torch.optim.SGD(model_of(0).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
    for _ in range(hvd.rank() + 1):
        optimizer.step()
        scheduler.step()
    state.sync()
    assert state.scheduler is scheduler and scheduler.optimizer is optimizer
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)
    scheduler.step()
    state.restore()
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)


def test_sync_gives_a_new_rank_the_optimizers_state_and_no_gradients() -> None:
    """With zeros, weight decay would change parameters there that no loss depends on elsewhere."""
    model = model_of(hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.9)
    if hvd.rank() == 0:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hvd.elastic.TorchState(model=model, optimizer=optimizer).sync()
    assert optimizer.param_groups[0]["lr"] == 0.1
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    assert momentum.tolist() == [[1.0] * 4] * 2
    assert model.weight.grad is None
    assert model.bias.grad is None
