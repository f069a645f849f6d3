"""Training with gluon and Module on several ranks against one process with the whole batch."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus.mxnet.horovod as hvd

BATCH = 24  # of all ranks together, which 1 to 4 of them share
STEPS = 5
LOSS = gluon.loss.L2Loss()


def data():
    generator = np.random.default_rng(7)
    return (
        generator.normal(size=(STEPS, BATCH, 6)).astype("float32"),
        generator.normal(size=(STEPS, BATCH, 3)).astype("float32"),
    )


def own(batch):
    return batch[hvd.rank() :: hvd.size()]


def new_net(seed, hybrid=True, inputs=6, prefix="net_"):
    """Its weights depend on the seed; of unknown shape at first if `inputs` is 0."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(gluon.nn.Dense(16, activation="tanh", in_units=inputs))
        net.add(gluon.nn.Dense(3, in_units=16 if inputs else 0))
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    return net


def weights(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]


def train(net, trainer, take=lambda batch: batch, batch_size=BATCH):
    for x, y in zip(*data(), strict=True):
        with autograd.record():
            loss = LOSS(net(mx.nd.array(take(x))), mx.nd.array(take(y)))
        loss.backward()
        trainer.step(batch_size)


def trained_alone(optimizer="sgd", **options):
    """Returns the weights after one process has trained on the whole batches."""
    net = new_net(0)
    train(net, gluon.Trainer(net.collect_params(), optimizer, options, kvstore=None))
    return weights(net)


def assert_same(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def agreed(net):
    """Returns its weights, after checking that they are the same on all ranks."""
    mine = weights(net)
    for of_rank in hvd.allgather_object(mine):
        for one, other in zip(mine, of_rank, strict=True):
            np.testing.assert_array_equal(one, other)
    return mine


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trainer_is_one_process_with_the_whole_batch(name, hybrid):
    net = new_net(hvd.rank(), hybrid)
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    trainer = hvd.DistributedTrainer(params, name, OPTIMIZERS[name])
    train(net, trainer, own, BATCH // hvd.size())
    assert_same(agreed(net), trained_alone(name, **OPTIMIZERS[name]))


@pytest.mark.parametrize(
    "options",
    [
        {"num_groups": 1},
        {"num_groups": 3},
        {"num_groups": 100},
        {"gradient_predivide_factor": 2.0},
        {"prefix": "mine."},
    ],
    ids=str,
)
def test_trainers_options_change_no_result(options):
    net = new_net(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], **options)
    train(net, trainer, own, BATCH // hvd.size())
    assert_same(agreed(net), trained_alone("sgd", **OPTIMIZERS["sgd"]))


def test_compressed_gradients():
    net = new_net(0)
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, compression=hvd.Compression.fp16
    )
    train(net, trainer, own, BATCH // hvd.size())
    gradients = [param.grad().dtype for param in net.collect_params().values()]
    assert set(gradients) == {np.float32}
    alone = trained_alone("sgd", learning_rate=0.1)
    assert_same(agreed(net), alone, 2e-3)
    if hvd.size() > 1:
        assert any((one != other).any() for one, other in zip(weights(net), alone, strict=True))


def test_two_trainers_are_told_apart_by_their_prefixes():
    nets = [new_net(0), new_net(0, prefix="other_")]
    trainers = [
        hvd.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], prefix=str(i))
        for i, net in enumerate(nets)
    ]
    for x, y in zip(*data(), strict=True):
        for net in nets:
            with autograd.record():
                loss = LOSS(net(mx.nd.array(own(x))), mx.nd.array(own(y)))
            loss.backward()
        for trainer in reversed(trainers) if hvd.rank() % 2 else trainers:
            trainer.step(BATCH // hvd.size())
    alone = trained_alone("sgd", **OPTIMIZERS["sgd"])
    for net in nets:
        assert_same(agreed(net), alone)


def test_gradients_are_there_between_reduction_and_update():
    net = new_net(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x, y = (batch[0] for batch in data())
    with autograd.record():
        loss = LOSS(net(mx.nd.array(own(x))), mx.nd.array(own(y)))
    loss.backward()
    trainer.allreduce_grads()
    reduced = [param.grad().asnumpy() * hvd.size() for param in net.collect_params().values()]
    whole = new_net(0)
    with autograd.record():
        loss = LOSS(whole(mx.nd.array(x)), mx.nd.array(y))
    loss.backward()
    assert_same(
        reduced, [param.grad().asnumpy() for param in whole.collect_params().values()], 1e-5
    )
    before = weights(net)
    trainer.update(BATCH)
    assert any((one != other).any() for one, other in zip(weights(net), before, strict=True))


def test_parameters_whose_initialisation_is_deferred_get_the_roots():
    net = new_net(hvd.rank(), inputs=0)
    params = net.collect_params()
    root = hvd.size() - 1
    hvd.broadcast_parameters(params, root_rank=root, prefix="deferred.")
    net(mx.nd.ones((2, 6)))
    found = agreed(net)
    alone = new_net(root, inputs=0)
    alone(mx.nd.ones((2, 6)))
    assert_same(found, weights(alone), 0)
    # The root's are given once.
    params.initialize(mx.init.Constant(float(hvd.rank())), force_reinit=True)
    net(mx.nd.ones((2, 6)))
    assert (weights(net)[0] == hvd.rank()).all()


def test_broadcast_parameters_takes_arrays_by_name():
    arrays = {name: mx.nd.ones((3,)) * hvd.rank() for name in "ba"}
    hvd.broadcast_parameters(arrays, root_rank=hvd.size() - 1)
    for array in arrays.values():
        assert array.asnumpy().tolist() == [hvd.size() - 1] * 3


def test_what_parameters_cannot_be():
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters([mx.nd.ones((3,))])
    with pytest.raises(AssertionError):
        hvd.broadcast_parameters({}, prefix=3)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="invalid params: a is int"):
            hvd.broadcast_parameters({"a": 3})
    net = new_net(0)
    with pytest.raises(AssertionError):
        hvd.DistributedTrainer(net.collect_params(), "sgd", prefix=3)
    with pytest.raises(ValueError, match="num_groups"):
        hvd.DistributedTrainer(net.collect_params(), "sgd", num_groups=-1)
    with pytest.raises(ValueError, match="gradient_predivide_factor is 0"):
        hvd.DistributedTrainer(net.collect_params(), "sgd", gradient_predivide_factor=0)
    with pytest.raises(TypeError, match="Optimizer"):
        hvd.DistributedOptimizer("sgd")


def module_trained(optimizer, take, batch_size, **fit):
    """Returns a Module's weights after an epoch of fit."""
    x, y = data()
    iterator = mx.io.NDArrayIter(
        np.concatenate([take(batch) for batch in x]),
        np.concatenate([take(batch) for batch in y]),
        batch_size,
        label_name="y",
    )
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc1")
    output = mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=3, name="fc2")
    net = mx.sym.LinearRegressionOutput(output, mx.sym.var("y"), name="out")
    module = mx.mod.Module(net, label_names=["y"])
    module.bind(iterator.provide_data, iterator.provide_label)
    mx.random.seed(fit.pop("seed", 0))
    module.init_params(mx.init.Xavier())
    if fit.pop("broadcast", False):
        arg_params, aux_params = module.get_params()
        hvd.broadcast_parameters(arg_params)
        module.set_params(arg_params, aux_params)
    module.fit(iterator, eval_metric="mse", optimizer=optimizer, num_epoch=1, **fit)
    return [value.asnumpy() for _, value in sorted(module.get_params()[0].items())]


@pytest.mark.parametrize("num_groups", [0, 2])
def test_module_with_an_optimizer_that_reduces(num_groups):
    sgd = {"learning_rate": 0.05, "momentum": 0.9}
    # The rates of Module: per row of the batch, of which this rank has fewer.
    optimizer = mx.optimizer.SGD(**sgd, rescale_grad=hvd.size() / BATCH)
    distributed = hvd.DistributedOptimizer(optimizer, num_groups=num_groups)
    found = module_trained(
        distributed, own, BATCH // hvd.size(), kvstore=None, seed=hvd.rank(), broadcast=True
    )
    alone = mx.optimizer.SGD(**sgd, rescale_grad=1 / BATCH)
    expected = module_trained(alone, lambda batch: batch, BATCH, kvstore=None)
    assert_same(found, expected)


def test_what_is_set_on_the_optimizer_is_set_on_its_own():
    own_one = mx.optimizer.SGD(learning_rate=0.1)
    distributed = hvd.DistributedOptimizer(own_one)
    distributed.rescale_grad = 0.5
    distributed.set_learning_rate(0.3)
    distributed.set_lr_mult({"a": 2.0})
    assert isinstance(distributed, mx.optimizer.Optimizer)
    assert (own_one.rescale_grad, own_one.lr, distributed.learning_rate) == (0.5, 0.3, 0.3)
    assert own_one.lr_mult == distributed.lr_mult
    weight = mx.nd.ones((3,))
    gradient = mx.nd.ones((3,)) * hvd.rank()
    state = distributed.create_state_multi_precision(0, weight)
    distributed.update(0, weight, gradient, state)
    average = (hvd.size() - 1) / 2
    np.testing.assert_allclose(weight.asnumpy(), 1 - 0.3 * 0.5 * average, rtol=1e-6)
    assert own_one.num_update == distributed.num_update == 1


def test_an_optimizer_that_reduces_is_pickled_with_its_own(tmp_path):
    distributed = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.3), 2.0, 3)
    for copied in (pickle.loads(pickle.dumps(distributed)), copy.deepcopy(distributed)):
        assert isinstance(copied, hvd.DistributedOptimizer)
        assert copied.learning_rate == 0.3
        weight = mx.nd.ones((3,))
        copied.update(0, weight, mx.nd.ones((3,)), copied.create_state(0, weight))
        np.testing.assert_allclose(weight.asnumpy(), 0.7, rtol=1e-6)
    net = new_net(0)
    trainer = gluon.Trainer(net.collect_params(), distributed, kvstore=None)
    train(net, trainer, own, BATCH)
    file = str(tmp_path / f"states.{hvd.rank()}")
    trainer.save_states(file)
    trainer.load_states(file)


def test_a_trainer_unwraps_an_optimizer_that_reduces():
    optimizer = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=1e-3)
    net = new_net(0)
    with pytest.warns(UserWarning, match="reduced once"):
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(optimizer))
    assert trainer.optimizer is optimizer
    train(net, trainer, own, BATCH // hvd.size())
    assert_same(agreed(net), trained_alone("sgd", **OPTIMIZERS["sgd"]))


def test_a_rank_outside_the_set_takes_its_own_gradients():
    if hvd.size() < 3:
        pytest.skip("needs three ranks")
    pair = hvd.add_process_set([0, 1])
    net = new_net(0)
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, process_set=pair
    )
    train(net, trainer, own, BATCH // hvd.size())
    mine = weights(net)
    of_all = hvd.allgather_object(mine)
    assert_same(of_all[0], of_all[1], 0)
    assert any((one != other).any() for one, other in zip(of_all[0], of_all[2], strict=True))
    hvd.remove_process_set(pair)


@mx.util.use_np
def test_a_net_of_numpy_arrays():
    generator = np.random.default_rng(3)
    net = gluon.nn.Dense(4, in_units=5)
    net.initialize(mx.init.Constant(float(hvd.rank())))
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = generator.normal(size=(BATCH, 5)).astype("float32")
    with autograd.record():
        loss = net(mx.np.array(own(x))).sum()
    loss.backward()
    trainer.step(BATCH // hvd.size())
    expected = -0.1 * x.mean(axis=0)
    np.testing.assert_allclose(net.weight.data().asnumpy(), np.tile(expected, (4, 1)), atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_weights_that_onednn_has_in_its_own_layout(in_place):
    net = gluon.nn.Conv2D(32, kernel_size=3, in_channels=16)
    net.initialize(mx.init.Normal(1.0))
    net.hybridize()
    weight = net.weight.data()
    weight[:] = mx.nd.arange(weight.size).reshape(weight.shape) + hvd.rank()
    x = mx.nd.ones((2, 16, 8, 8))
    before = net(x).asnumpy()  # without training
    expected = np.arange(weight.size).reshape(weight.shape)
    if in_place:
        hvd.broadcast_parameters(net.collect_params())
        np.testing.assert_array_equal(weight.asnumpy(), expected)
    else:
        np.testing.assert_array_equal(hvd.broadcast(weight, 0).asnumpy(), expected)
        np.testing.assert_array_equal(hvd.allgather(weight)[:32].asnumpy(), expected)
        np.testing.assert_allclose(net(x).asnumpy(), before)
