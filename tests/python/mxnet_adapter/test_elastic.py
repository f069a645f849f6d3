"""The elastic state of a gluon job: saved, restored, synced, and trained through failures."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus.mxnet.horovod as hvd
import perseus_core
from perseus.common import state_sources
from perseus.common.exceptions import HorovodInternalError
from perseus.common.state_sources import Group

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.05},
    "nag": {"learning_rate": 0.1},  # no state for a parameter
}


def new_net(value):
    net = gluon.nn.HybridSequential(prefix="elastic_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, activation="tanh", in_units=3), gluon.nn.Dense(2, in_units=4))
    net.initialize(mx.init.Constant(value))
    net.hybridize()
    return net


def new_trainer(net, kind):
    return hvd.DistributedTrainer(net.collect_params(), kind, dict(OPTIMIZERS[kind]))


def step(net, trainer, number, seed=0):
    generator = np.random.default_rng([seed, number, hvd.rank()])
    x, y = (mx.nd.array(generator.normal(size=(4, size))) for size in (3, 2))
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(x), y)
    loss.backward()
    trainer.step(4)


def arrays(tree):
    if isinstance(tree, (list, tuple)):
        return [each for child in tree for each in arrays(child)]
    return [] if tree is None else [tree.asnumpy()]


def everything(net, trainer):
    """Parameters, the optimizer's states, and its counts."""
    parameters = [param.data().asnumpy() for param in net.collect_params().values()]
    states = arrays(list(trainer._updaters[0].states.values()))
    return [*parameters, *states, np.array(trainer._optimizer.num_update)]


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_restore_goes_back_to_the_last_save(kind):
    net = new_net(0.1)
    trainer = new_trainer(net, kind)
    state = hvd.elastic.MXNetState(net=net, trainer=trainer, step=0)
    before = everything(net, trainer)
    step(net, trainer, 0)
    state.step = 1
    state.restore()  # there was no commit: to how it was at first
    assert_same(everything(net, trainer), before)
    assert state.step == 0

    for number in range(3):
        step(net, trainer, number)
        state.save()
    saved = everything(net, trainer)
    step(net, trainer, 3)
    trainer.set_learning_rate(9.0)
    after_saved = []
    for _ in range(2):  # twice, as what is restored is trained on
        state.restore()
        assert_same(everything(net, trainer), saved)
        assert trainer.learning_rate == OPTIMIZERS[kind]["learning_rate"]
        step(net, trainer, 3)
        after_saved.append(everything(net, trainer))
    assert_same(*after_saved)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sync_gives_all_ranks_rank_0_s_state(kind):
    net = new_net(0.1 * hvd.rank())
    trainer = new_trainer(net, kind)
    alone = gluon.Trainer(net.collect_params(), kind, dict(OPTIMIZERS[kind]), kvstore=None)
    if hvd.rank() == 0:  # the others are new: they have no states yet
        trainer._optimizer, trainer._updaters = alone._optimizer, alone._updaters
        for number in range(2):
            step_alone(net, trainer, number)
    state = hvd.elastic.MXNetState(net=net, trainer=trainer, step=hvd.rank() + 5)
    state.sync()
    assert state.step == 5
    mine = everything(net, trainer)
    for of_rank in hvd.allgather_object(mine):
        assert_same(of_rank, mine)
    assert mine[-1] == 2
    step(net, trainer, 7)
    after = everything(net, trainer)
    for of_rank in hvd.allgather_object(after):
        assert_same(of_rank, after)
    state.restore()
    assert_same(everything(net, trainer), mine)


def step_alone(net, trainer, number):
    generator = np.random.default_rng(number)
    with autograd.record():
        loss = net(mx.nd.array(generator.normal(size=(4, 3)))).sum()
    loss.backward()
    trainer._update()


def trained(fail_at=()):
    net = new_net(0.1)
    trainer = new_trainer(net, "sgd")
    state = hvd.elastic.MXNetState(net=net, trainer=trainer, step=0)
    failures, resets = set(fail_at), []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state):
        while state.step < 6:
            step(net, trainer, state.step)
            if state.step in failures:
                failures.remove(state.step)
                raise HorovodInternalError("a rank was lost")
            state.step += 1
            state.commit()

    train(state)
    assert resets == [hvd.size()] * len(fail_at)
    return everything(net, trainer)


def test_training_through_failures_ends_as_without():
    assert_same(trained(fail_at=(0, 3, 5)), trained())


def test_a_state_is_saved_in_the_memory_of_the_last():
    net = new_net(0.1)
    trainer = new_trainer(net, "sgd")
    step(net, trainer, 0)
    state = hvd.elastic.MXNetState(net=net, trainer=trainer)

    def saved():
        of_net, of_trainer = (handler._saved for handler in state._handlers.values())
        return [*map(id, of_net.values()), *map(id, of_trainer[0].values())]

    before = saved()
    step(net, trainer, 1)
    state.save()
    assert saved() == before


def test_parameters_that_are_not_initialized_have_no_state():
    net = gluon.nn.Dense(2)
    net.initialize()
    with pytest.raises(
        ValueError, match=r"parameter dense.*weight is not initialized yet; it must"
    ):
        hvd.elastic.MXNetState(net=net)
    net(mx.nd.ones((1, 3)))
    hvd.elastic.MXNetState(net=net)


def test_a_loader_goes_on_in_the_middle_of_an_epoch():
    data = gluon.data.SimpleDataset(list(range(6 * hvd.size())))
    sampler = hvd.elastic.ElasticSampler(data, seed=1)
    loader = gluon.data.DataLoader(data, batch_size=2, sampler=sampler)
    state = hvd.elastic.MXNetState(sampler=sampler)
    kept = []
    for i, batch in enumerate(loader):
        sampler.record_batch(i, 2)
        if i == 0:
            kept += batch.asnumpy().tolist()
            state.commit()
    state.restore()
    state.on_reset()
    state.join_progress()
    for batch in loader:
        kept += batch.asnumpy().tolist()
    assert sorted(i for part in hvd.allgather_object(kept) for i in part) == list(data)


class Everything:
    """The arrays of many kinds that ranks have alike, but for `own`, and what else a state has."""

    def __init__(self, has_state):
        self.net = new_net(0.1 if has_state else 0.5)
        self.trainer = new_trainer(self.net, "sgd")
        alone = gluon.Trainer(self.net.collect_params(), "sgd", dict(OPTIMIZERS["sgd"]), None)
        if has_state:
            self.trainer._optimizer, self.trainer._updaters = alone._optimizer, alone._updaters
            step_alone(self.net, self.trainer, 3)
        self.others = gluon.ParameterDict("others_")
        value = 3 if has_state else 4
        for dtype in ("float16", "float32", "float64", "int8", "int64", "uint8"):
            self.add(dtype, (7, 3), value, dtype)
        self.add("large", (70_001,), value, "float32")
        self.add("own", (2,), 100.0 + hvd.rank(), "float64")

    def add(self, name, shape, value, dtype):
        param = self.others.get(
            name, shape=shape, dtype=dtype, init=mx.init.Constant(value), grad_req="null"
        )
        param.initialize(ctx=[mx.cpu(0), mx.cpu(1)] if name == "large" else mx.cpu())

    def state(self):
        parts = {"net": self.net, "trainer": self.trainer, "others": self.others}
        return hvd.elastic.MXNetState(**parts, step=hvd.rank() + 5)

    def arrays(self):
        of_others = [each for param in self.others.values() for each in param.list_data()]
        return [*everything(self.net, self.trainer), *(each.asnumpy() for each in of_others)]


@pytest.mark.parametrize("are_apart", [False, True])
@pytest.mark.parametrize("lacking", [1, 2])
def test_ranks_that_lack_the_state_get_it_from_those_that_have_it(are_apart, lacking, monkeypatch):
    holders = list(range(max(1, hvd.size() - lacking)))
    if are_apart:  # as if each rank had a host of its own

        def apart(hosts, holders):
            others = [rank for rank in range(hvd.size()) if rank not in holders]
            return [Group(tuple(holders), tuple(others))]

        monkeypatch.setattr(state_sources, "groups_of", apart)
    expected = hvd.broadcast_object(Everything(True).arrays())
    ours = Everything(hvd.rank() in holders)
    state = ours.state()
    state._commits = int(hvd.rank() in holders)
    assert state.needs_sync() == (hvd.size() > 1)
    before = perseus_core.counters()["bytes_broadcast"]
    state.sync_from_holders()
    moved = perseus_core.counters()["bytes_broadcast"] - before
    assert_same(ours.arrays(), expected)
    assert state.step == 5
    # A rank gives, at most, what others lack, and one that neither gives nor gets is left in peace.
    least = {hvd.size() - 1: 280_000} if hvd.size() > 1 else {}
    assert least.get(hvd.rank(), 0) <= moved < 300_000
    if hvd.rank() in holders[1:] and not are_apart:
        assert moved < 10_000
    step(ours.net, ours.trainer, 1)  # an engine that does not know of the new values would use old
    state.restore()
    assert_same(ours.arrays(), expected)
