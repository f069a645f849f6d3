"""The KVStore of Ali-Perseus: by hand, in gluon's Trainer, in Module."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from test_training import (
    BATCH,
    OPTIMIZERS,
    agreed,
    assert_same,
    module_trained,
    new_net,
    own,
    train,
    trained_alone,
    weights,
)

import perseus.mxnet as perseus
from perseus.common.exceptions import HorovodInternalError


@pytest.fixture
def kv():
    return perseus.create("dist_sync_perseus")


def test_it_says_who_is_who(kv):
    assert (kv.rank, kv.num_workers) == (perseus.rank(), perseus.size())
    assert kv.local_rank == perseus.local_rank()
    assert kv.type == "dist_sync_perseus"
    assert isinstance(kv, mx.kvstore.KVStoreBase)


@pytest.mark.parametrize("name", ["dist_sync_perseus", "dist-sync-perseus"])
def test_both_spellings_also_by_mxnet(name):
    assert isinstance(perseus.create(name), perseus.KVStore)
    assert isinstance(mx.kv.create(name), perseus.KVStore)
    with pytest.raises(ValueError, match="dist_sync_perseus"):
        perseus.create("dist_async")


def test_a_pull_gives_worker_0s_array_at_first(kv):
    mine = mx.nd.ones((2, 3)) * kv.rank
    kv.init("w", mine)
    out = mx.nd.ones((2, 3)) * 9
    kv.pull("w", out=out)
    assert (out.asnumpy() == 0).all()
    assert (mine.asnumpy() == kv.rank).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("op", list(perseus.PerseusOp))
def test_reduction_by_name_in_place(kv, op, dtype):
    key = f"{op.name}.{dtype}"
    array = mx.nd.zeros((5,), dtype=dtype)
    kv.init(key, array, param_only=True)
    for step in range(3):
        array[:] = kv.rank + step + 1
        kv.push(key, array, op=op)
        kv.pull(key, array, priority=-step)
        values = [rank + step + 1 for rank in range(kv.num_workers)]
        combine = {"Sum": sum, "Max": max, "Min": min, "Product": np.prod}[op.name]
        assert array.asnumpy().tolist() == [combine(values)] * 5


def test_lists_of_keys_and_arrays_of_several_devices(kv):
    keys = ["a", 3]
    devices = [mx.cpu(0), mx.cpu(1)]
    arrays = [[mx.nd.ones((2,), ctx=ctx) * (i + 1) for ctx in devices] for i in range(2)]
    kv.init(keys, [of_devices[0] for of_devices in arrays])
    kv.push(keys, arrays)
    outs = [[mx.nd.zeros((2,), ctx=ctx) for ctx in devices] for _ in keys]
    kv.pull(keys, out=outs)
    for i, of_devices in enumerate(outs):
        for out in of_devices:
            assert out.asnumpy().tolist() == [2.0 * (i + 1) * kv.num_workers] * 2
    kv.pushpull(keys, arrays)
    for i, of_devices in enumerate(arrays):
        for array in of_devices:
            assert array.asnumpy().tolist() == [2.0 * (i + 1) * kv.num_workers] * 2
    kv.push("a", arrays[0], op=perseus.PerseusOp.Max)
    kv.pull("a", out=outs[0])
    assert outs[0][1].asnumpy().tolist() == [2.0 * kv.num_workers] * 2


def test_pushpull_into_another_array(kv):
    kv.init("p", mx.nd.zeros((3,)))
    value, out = mx.nd.ones((3,)), mx.nd.zeros((3,))
    kv.pushpull("p", value, out=out)
    assert out.asnumpy().tolist() == [kv.num_workers] * 3
    assert value.asnumpy().tolist() == [1.0] * 3


def test_mistakes(kv):
    ones = mx.nd.ones((3,))
    with pytest.raises(KeyError, match="call init first"):
        kv.push("unknown", ones)
    with pytest.raises(KeyError, match="call init first"):
        kv.pull("unknown", ones)
    kv.init("m", ones)
    with pytest.raises(ValueError, match="initialized already"):
        kv.init("m", ones)
    with pytest.raises(ValueError, match=r"float32\[3\].*float32\[4\]"):
        kv.push("m", mx.nd.ones((4,)))
    with pytest.raises(ValueError, match=r"float32\[3\].*float32\[1\]"):
        kv.push("m", [ones, mx.nd.ones((1,), ctx=mx.cpu(1))])
    with pytest.raises(TypeError, match="priority"):
        kv.push("m", ones, priority="first")
    with pytest.raises(ValueError, match="out is None"):
        kv.pull("m")
    with pytest.raises(ValueError, match="as many"):
        kv.push(["m", "m"], [ones])
    with pytest.raises(TypeError, match="str or an int"):
        kv.push(0.5, ones)
    with pytest.raises(ValueError, match="PerseusOp"):
        kv.push("m", ones, op=17)
    with pytest.raises(ValueError, match="row_sparse"):
        kv.push("m", mx.nd.ones((3, 2)).tostype("row_sparse"))
    with pytest.raises(NotImplementedError):
        kv.set_gradient_compression({"type": "2bit"})
    with pytest.raises(TypeError, match="Optimizer"):
        kv.set_optimizer("sgd")
    kv.set_optimizer(mx.optimizer.SGD())
    with pytest.raises(ValueError, match="Sum only"):
        kv.push("m", ones, op=perseus.PerseusOp.Max)
    kv.init("named", ones, param_only=True)
    kv.push("named", ones * kv.rank, op=perseus.PerseusOp.Max)
    kv.pull("named", ones)
    assert ones.asnumpy().tolist() == [kv.num_workers - 1] * 3
    kv.barrier()


def test_what_was_pushed_is_the_weight_of_an_optimizer_set_later(kv):
    kv.init("w", mx.nd.zeros((3,)))
    kv.push("w", mx.nd.ones((3,)))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0))
    kv.push("w", mx.nd.ones((3,)) * 2)
    kv.push("w", mx.nd.ones((3,)) * 4)
    out = mx.nd.empty((3,))
    kv.pull("w", out)
    assert out.asnumpy().tolist() == [kv.num_workers * (1 - 2 - 4)] * 3


def test_a_mistake_of_one_worker_is_an_error_of_all(kv, two_ranks):
    kv.init("lone", mx.nd.ones((3,)))
    if kv.rank == 0:
        with pytest.raises(ValueError, match="initialized with"):
            kv.push("lone", mx.nd.ones((4,)))
    else:
        kv.push("lone", mx.nd.ones((3,)))
        out = mx.nd.zeros((3,))
        kv.pull("lone", out)
        with pytest.raises(HorovodInternalError, match="rank 0"):
            out.wait_to_read()


def test_a_wrong_list_of_one_worker_is_an_error_of_all(kv, two_ranks):
    keys = ["list.a", "list.b"]
    kv.init(keys, [mx.nd.ones((3,))] * 2)
    arrays = [mx.nd.ones((3,)) for _ in keys]
    if kv.rank == 1:
        with pytest.raises(ValueError, match="2 keys, and not as many"):
            kv.push(keys, arrays[:1])
    else:
        kv.push(keys, arrays)
        for key in keys:
            out = mx.nd.zeros((3,))
            kv.pull(key, out)
            with pytest.raises(HorovodInternalError, match="rank 1"):
                out.wait_to_read()
    with pytest.raises(ValueError, match="has no array"):
        kv.push("list.a", [])
    kv.push(keys, arrays)
    kv.pull(keys, arrays)
    assert [array.asnumpy().tolist() for array in arrays] == [[kv.num_workers] * 3] * 2


@pytest.mark.parametrize("update_on_kvstore", [None, True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gluons_trainer(kv, name, update_on_kvstore):
    net = new_net(0)
    trainer = gluon.Trainer(
        net.collect_params(),
        name,
        OPTIMIZERS[name],
        kvstore=kv,
        update_on_kvstore=update_on_kvstore,
    )
    train(net, trainer, own, BATCH)
    assert_same(agreed(net), trained_alone(name, **OPTIMIZERS[name]))


def test_workers_that_begin_with_other_weights_agree_from_the_first_step(kv):
    net = new_net(kv.rank)
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=kv)
    train(net, trainer, own, BATCH)
    agreed(net)


def test_gluons_trainer_finds_it_by_name():
    net = new_net(0, inputs=0)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore="dist_sync_perseus"
    )
    train(net, trainer, own, BATCH)
    alone = new_net(0, inputs=0)
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=None))
    assert_same(agreed(net), weights(alone))


def test_states_of_an_optimizer_are_saved_and_loaded(kv, tmp_path):
    file = str(tmp_path / f"states.{kv.rank}")
    options = {"learning_rate": 0.1, "momentum": 0.9}
    net = new_net(0)
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=kv)
    train(net, trainer, own, BATCH)
    trainer.save_states(file)
    copy = new_net(1)
    for mine, theirs in zip(
        copy.collect_params().values(), net.collect_params().values(), strict=True
    ):
        mine.set_data(theirs.data())
    other = gluon.Trainer(
        copy.collect_params(), "sgd", options, kvstore=perseus.create("dist_sync_perseus")
    )
    other.load_states(file)
    train(net, trainer, own, BATCH)
    train(copy, other, own, BATCH)
    assert_same(agreed(copy), agreed(net), 0)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_module(kv, name):
    options = tuple({"learning_rate": 0.01}.items())
    found = module_trained(
        name, own, BATCH // kv.num_workers, kvstore=kv, seed=kv.rank, optimizer_params=options
    )
    expected = module_trained(
        name, lambda batch: batch, BATCH, kvstore=None, optimizer_params=options
    )
    assert_same(found, expected)


def test_module_that_updates_by_itself(kv, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    options = (("learning_rate", 0.01), ("momentum", 0.9))
    found = module_trained(
        "sgd", own, BATCH // kv.num_workers, kvstore=kv, optimizer_params=options
    )
    expected = module_trained(
        "sgd", lambda batch: batch, BATCH, kvstore=None, optimizer_params=options
    )
    assert_same(found, expected)
