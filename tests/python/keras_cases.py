"""Tests of the interfaces for Keras that hold on every backend and version.

The folders of tests import them, and give as fixtures: `keras`, the package; `hvd`, the interface;
`gradients_of(model, x, y)`, of its mean squared error; `partial(optimizer, layer, scaled)` and
`accumulating(optimizer, passes, averaged)`, which make distributed optimizers.
"""

from __future__ import annotations

import functools
import json
import zipfile

import numpy as np
import pytest

import perseus_core

BATCH = 24  # divides evenly among 1, 2, 3 and 4 ranks, also in two passes
STEPS = 3
MSE = "mean_squared_error"
X = np.random.default_rng(1).normal(size=(STEPS * BATCH, 4))
Y = np.random.default_rng(2).normal(size=(STEPS * BATCH, 3))


def size():
    return perseus_core.size()


def rank():
    return perseus_core.rank()


def is_keras_3(keras):
    return hasattr(keras.optimizers.Optimizer, "stateless_apply")


def own_rows(array):
    """Returns this rank's rows of each batch."""
    batches = array.reshape(STEPS, BATCH, -1)
    return batches[:, rank() :: size()].reshape(-1, array.shape[1])


def make_model(keras, seed=0, dtype="float64"):
    layers = [
        keras.layers.Dense(5, activation="tanh", dtype=dtype),
        keras.layers.Dense(3, dtype=dtype),
    ]
    model = keras.Sequential([keras.layers.Input((4,), dtype=dtype), *layers])
    generator = np.random.default_rng([7, seed])
    model.set_weights([generator.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def make_optimizer(keras, kind):
    makers = {
        "sgd": lambda of: of.SGD(0.1, momentum=0.9),
        # With its usual epsilon it makes much of how gradients near 0 are rounded, which depends on
        # the processor.
        "adam": lambda of: of.Adam(0.05, epsilon=1e-3),
        "clipped": lambda of: of.SGD(0.1, clipnorm=0.05),
    }
    legacy = kind.startswith("legacy ")
    return makers[kind.removeprefix("legacy ")](
        keras.optimizers.legacy if legacy else keras.optimizers
    )


def kinds(keras):
    legacy = [] if is_keras_3(keras) else ["legacy sgd", "legacy adam"]
    return ["sgd", "adam", "clipped", *legacy]


def fit(model, x, y, epochs=1, **options):
    return model.fit(
        x, y, batch_size=len(x) // STEPS, epochs=epochs, shuffle=False, verbose=0, **options
    )


@functools.cache
def whole_batch(keras, kind="sgd", epochs=2):
    """Returns the weights after one process has trained with all ranks' rows."""
    model = make_model(keras)
    # Without building graphs, which takes most of the time of tests.
    model.compile(make_optimizer(keras, kind), MSE, run_eagerly=True)
    fit(model, X, Y, epochs)
    return model.get_weights()


def assert_weights(model, expected, tolerance=5e-5):
    # Losses are float32 whatever the model is.
    for weight, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=0, atol=tolerance)


def assert_equal_on_all_ranks(arrays):
    flat = np.concatenate([np.ravel(array) for array in arrays])
    rows = perseus_core.allgather(flat[None].astype(np.float64))
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))


def apply_batches(optimizer, model, gradients_of, x, y):
    """Runs a custom training loop."""
    rows = len(x) // STEPS
    for step in range(STEPS):
        part = slice(step * rows, (step + 1) * rows)
        gradients = gradients_of(model, x[part], y[part])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def number(value):
    return float(value.numpy() if hasattr(value, "numpy") else value)


def slots(optimizer):
    listed = optimizer.variables
    return [np.array(each.numpy()) for each in (listed() if callable(listed) else listed)]


# Training


def test_fit_trains_as_one_process_with_the_whole_batch(keras, hvd):
    for kind in kinds(keras):
        model = make_model(keras)
        model.compile(hvd.DistributedOptimizer(make_optimizer(keras, kind)), MSE)
        fit(model, own_rows(X), own_rows(Y), 2)
        assert_weights(model, whole_batch(keras, kind))
        assert_equal_on_all_ranks(model.get_weights())


def test_a_loop_of_the_users_own_trains_as_one_process(keras, hvd, gradients_of):
    for kind in kinds(keras):
        model = make_model(keras)
        optimizer = hvd.DistributedOptimizer(make_optimizer(keras, kind))
        apply_batches(optimizer, model, gradients_of, own_rows(X), own_rows(Y))
        assert_weights(model, whole_batch(keras, kind, epochs=1))
        assert int(number(optimizer.iterations)) == STEPS


def test_train_on_batch_trains_as_one_process(keras, hvd):
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(make_optimizer(keras, "sgd")), MSE)
    rows = BATCH // size()
    for step in range(STEPS):
        part = slice(step * rows, (step + 1) * rows)
        model.train_on_batch(own_rows(X)[part], own_rows(Y)[part])
    assert_weights(model, whole_batch(keras, epochs=1))


def test_the_sum_is_the_average_times_the_ranks(keras, hvd):
    model = make_model(keras)
    optimizer = keras.optimizers.SGD(0.1 / size(), momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer, op=hvd.Sum), MSE)
    fit(model, own_rows(X), own_rows(Y), 2)
    # The rate is kept as float32.
    assert_weights(model, whole_batch(keras), 1e-6)


@pytest.mark.parametrize(
    "options", [{"gradient_predivide_factor": 4.0}, {"groups": 2}, {"num_groups": 1}], ids=str
)
def test_ways_to_average_that_give_the_same(keras, hvd, options):
    model = make_model(keras)
    distributed = hvd.DistributedOptimizer
    if "num_groups" in options:
        with pytest.warns(DeprecationWarning, match="num_groups"):
            optimizer = distributed(make_optimizer(keras, "sgd"), **options)
    else:
        optimizer = distributed(make_optimizer(keras, "sgd"), **options)
    model.compile(optimizer, MSE, run_eagerly=True)
    fit(model, own_rows(X), own_rows(Y), 2)
    assert_weights(model, whole_batch(keras))


def test_groups_of_variables(keras, hvd):
    model = make_model(keras)
    first, second = model.layers
    groups = [[first.kernel, second.bias], [second.kernel]]
    optimizer = hvd.DistributedOptimizer(make_optimizer(keras, "sgd"), groups=groups)
    model.compile(optimizer, MSE)
    fit(model, own_rows(X), own_rows(Y), 2)
    assert_weights(model, whole_batch(keras))


def test_compression_rounds_gradients(keras, hvd, two_ranks):
    model = make_model(keras)
    optimizer = make_optimizer(keras, "sgd")
    rounding = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)
    model.compile(rounding, MSE, run_eagerly=True)
    fit(model, own_rows(X), own_rows(Y))
    expected = whole_batch(keras, epochs=1)
    assert_weights(model, expected, 1e-2)
    with pytest.raises(AssertionError):
        assert_weights(model, expected, 1e-9)
    assert_equal_on_all_ranks(model.get_weights())


# Several passes


@pytest.mark.parametrize("averaged", [True, False])
def test_passes_are_added_up_before_a_step(keras, accumulating, averaged):
    for kind in kinds(keras):
        if "adam" in kind or kind == "clipped":
            continue  # whose steps do not grow with the gradients
        model = make_model(keras)
        plain = keras.optimizers.legacy if "legacy" in kind else keras.optimizers
        rate = 0.1 if averaged else 0.1 / 2
        optimizer = accumulating(plain.SGD(rate, momentum=0.9), 2, averaged)
        model.compile(optimizer, MSE)
        # Six batches of half the rows, each pair of which is a batch of the whole.
        x, y = own_rows(X), own_rows(Y)
        rows = len(x) // STEPS
        of_steps = np.arange(len(x)).reshape(STEPS, rows)
        halves = np.concatenate([of_steps[:, 0::2], of_steps[:, 1::2]], axis=1)
        order = halves.ravel()
        model.fit(x[order], y[order], batch_size=rows // 2, shuffle=False, verbose=0)
        assert_weights(model, whole_batch(keras, "sgd", epochs=1), 1e-6)
        assert int(number(model.optimizer.iterations)) == 2 * STEPS


def test_before_the_last_pass_nothing_changes_but_the_iterations(keras, accumulating, gradients_of):
    model = make_model(keras)
    before = model.get_weights()
    optimizer = accumulating(make_optimizer(keras, "sgd"), 3, True)
    for iterations in (1, 2):
        gradients = gradients_of(model, own_rows(X), own_rows(Y))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        assert_weights(model, before, 0.0)
        assert int(number(optimizer.iterations)) == iterations
    gradients = gradients_of(model, own_rows(X), own_rows(Y))
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    with pytest.raises(AssertionError):
        assert_weights(model, before, 1e-3)
    assert_equal_on_all_ranks(model.get_weights())


# The optimizer itself


def test_it_is_an_optimizer_of_the_same_class_that_keeps_its_state(keras, hvd):
    for kind in kinds(keras):
        model = make_model(keras)
        plain = make_optimizer(keras, kind)
        model.compile(plain, MSE, run_eagerly=True)
        fit(model, X, Y)
        optimizer = hvd.DistributedOptimizer(plain)
        assert isinstance(optimizer, type(plain))
        assert type(optimizer).__name__ == type(plain).__name__
        assert optimizer.get_config() == plain.get_config()
        assert int(number(optimizer.iterations)) == STEPS
        assert len(slots(optimizer)) == len(slots(plain)) > 1
        model.compile(optimizer, MSE, run_eagerly=True)
        fit(model, own_rows(X), own_rows(Y))
        assert_weights(model, whole_batch(keras, kind))


def test_from_config_gives_one_that_reduces_too(keras, hvd, gradients_of):
    first = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    optimizer = first.from_config(first.get_config())
    assert optimizer.get_config() == first.get_config()
    model = make_model(keras)
    apply_batches(optimizer, model, gradients_of, own_rows(X), own_rows(Y))
    assert_weights(model, whole_batch(keras, epochs=1))


def test_a_mistake_in_the_arguments_is_told(keras, hvd, accumulating):
    sgd = keras.optimizers.SGD
    with pytest.raises(ValueError, match="op currently only supports Average and Sum"):
        hvd.DistributedOptimizer(sgd(), op=2)
    with pytest.raises(ValueError, match="groups must be"):
        hvd.DistributedOptimizer(sgd(), groups=0)
    with pytest.raises(ValueError, match="groups must consist"):
        hvd.DistributedOptimizer(sgd(), groups=[[1]])
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        accumulating(sgd(), 0, False)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    for wrong in ("sgd", None, keras.optimizers.SGD):
        with pytest.raises(TypeError, match="it takes an optimizer of Keras"):
            hvd.DistributedOptimizer(wrong)
    with pytest.raises(ValueError, match="a variable of Keras"):
        hvd.DistributedOptimizer(sgd()).register_local_var(1.0)


# Files


@pytest.mark.parametrize("form", ["keras", "h5"])
def test_a_saved_model_needs_no_perseus_and_is_loaded_with_its_state(keras, hvd, tmp_path, form):
    for kind in kinds(keras):
        if form == "keras" and "legacy" in kind:
            continue  # Keras does not restore their state
        file = str(tmp_path / f"model-{rank()}.{form}")
        model = make_model(keras)
        optimizer = hvd.DistributedOptimizer(make_optimizer(keras, kind))
        model.compile(optimizer, MSE, run_eagerly=True)
        fit(model, own_rows(X), own_rows(Y))
        model.save(file)
        if form == "keras":
            config = json.loads(zipfile.ZipFile(file).read("config.json"))
            plain = make_model(keras)
            plain.compile(make_optimizer(keras, kind), MSE)
            plain.save(file + ".plain.keras")
            wanted = json.loads(zipfile.ZipFile(file + ".plain.keras").read("config.json"))
            saved, like = (each["compile_config"]["optimizer"] for each in (config, wanted))
            assert {key: saved[key] for key in saved if key != "config"} == {
                key: like[key] for key in like if key != "config"
            }

        without = keras.models.load_model(file)
        assert not hasattr(without.optimizer, "register_local_var")

        loaded = hvd.load_model(file)
        assert hasattr(loaded.optimizer, "register_local_var")
        assert int(number(loaded.optimizer.iterations)) == STEPS
        assert_weights(loaded, model.get_weights(), 0.0)
        fit(loaded, own_rows(X), own_rows(Y))
        assert_weights(loaded, whole_batch(keras, kind))
        loaded.save(file)
        assert_weights(keras.models.load_model(file), loaded.get_weights(), 0.0)


def test_a_model_that_one_rank_has_loaded_trains_with_those_that_others_have_made(
    keras, hvd, tmp_path
):
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(make_optimizer(keras, "sgd")), MSE)
    if rank() == 0:
        file = str(tmp_path / "model.keras")
        model.save(file)
        keras.layers.Dense(1)  # whose number no other layer of this rank gets
        model = hvd.load_model(file)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, own_rows(X), own_rows(Y), 2, callbacks=[callback])
    assert_weights(model, whole_batch(keras))


def test_load_model_knows_optimizers_of_the_users_own(keras, hvd, tmp_path):
    class Mine(keras.optimizers.SGD):
        pass

    file = str(tmp_path / f"model-{rank()}.keras")
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(Mine(0.1, momentum=0.9)), MSE, run_eagerly=True)
    fit(model, own_rows(X), own_rows(Y))
    model.save(file)
    loaded = hvd.load_model(file, custom_optimizers=[Mine])
    assert isinstance(loaded.optimizer, Mine)
    fit(loaded, own_rows(X), own_rows(Y))
    assert_weights(loaded, whole_batch(keras))


# Scaled losses


def half_model(keras):
    dtype = "mixed_float16"
    inputs = keras.layers.Input((4,))
    model = keras.Sequential(
        [
            inputs,
            keras.layers.Dense(5, activation="tanh", dtype=dtype),
            keras.layers.Dense(3, dtype=dtype),
        ]
    )
    generator = np.random.default_rng(3)
    model.set_weights([generator.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def scaling_of(keras):
    found = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
    return found or keras.optimizers.LossScaleOptimizer


def scale_of(optimizer):
    return number(
        optimizer.dynamic_scale if hasattr(optimizer, "dynamic_scale") else optimizer.loss_scale
    )


def scaled_optimizers(keras, distribute):
    """Returns ours inside an optimizer that scales the loss, and around one."""
    scaling = scaling_of(keras)
    legacy = [] if is_keras_3(keras) else [keras.optimizers.legacy.SGD]
    for sgd in [keras.optimizers.SGD, *legacy]:
        yield scaling(distribute(sgd(0.1)), initial_scale=1024.0)
        yield distribute(scaling(sgd(0.1), initial_scale=1024.0))


def check_scaled_steps(keras, optimizer, passes=1):
    """A step, one that the last rank finds infinite, and another step."""
    model = half_model(keras)
    model.compile(optimizer, MSE)
    x, y = own_rows(X).astype(np.float32), own_rows(Y).astype(np.float32)
    weights = [model.get_weights()]
    scales = []
    for step in range(3):
        for this_pass in range(passes):
            wrong = step == 1 and this_pass == 0 and rank() == size() - 1
            model.train_on_batch(np.full_like(x, np.inf) if wrong else x, y)
        weights.append(model.get_weights())
        scales.append(scale_of(model.optimizer))
        assert_equal_on_all_ranks(scales)
    assert all(np.isfinite(weight).all() for weight in weights[-1])
    return weights, scales


def test_all_ranks_skip_a_step_that_one_finds_infinite(keras, hvd):
    for optimizer in scaled_optimizers(keras, hvd.DistributedOptimizer):
        weights, scales = check_scaled_steps(keras, optimizer)
        assert scales == [1024.0, 512.0, 512.0]
        for step, changes in enumerate([True, False, True]):
            same = all(map(np.array_equal, weights[step], weights[step + 1]))
            assert same != changes
        for each in weights:
            assert_equal_on_all_ranks(each)


def test_ranks_agree_on_passes_that_one_finds_infinite(keras, accumulating):
    for optimizer in scaled_optimizers(keras, lambda each: accumulating(each, 2, True)):
        weights, scales = check_scaled_steps(keras, optimizer, passes=2)
        assert scales[0] == 1024.0
        assert scales[1] == 512.0
        for each in weights:
            assert_equal_on_all_ranks(each)
        assert not all(map(np.array_equal, weights[0], weights[1]))
        assert not all(map(np.array_equal, weights[2], weights[3]))


def test_compile_scales_the_loss_of_mixed_precision(keras, hvd):
    policy = getattr(keras.mixed_precision, "global_policy", None) or keras.config.dtype_policy
    set_policy = keras.mixed_precision.set_global_policy
    before = policy()
    set_policy("mixed_float16")
    try:
        model = half_model(keras)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), MSE)
    finally:
        set_policy(before)
    assert isinstance(model.optimizer, scaling_of(keras))
    x, y = own_rows(X).astype(np.float32), own_rows(Y).astype(np.float32)
    fit(model, x, y)
    assert_equal_on_all_ranks(model.get_weights())


# Values


def test_values_go_in_and_tensors_come_out(keras, hvd):
    every = np.arange(size(), dtype=np.float64)
    kwargs = {"average": None}
    total = hvd.allreduce(float(rank()), op=hvd.Sum, **kwargs)
    assert number(total) == every.sum()
    mean = hvd.allreduce(np.full((2, 3), rank(), np.float64), name="a mean")
    np.testing.assert_allclose(mean.numpy(), np.full((2, 3), every.mean()))
    scaled = hvd.allreduce([1.0], prescale_factor=2.0, postscale_factor=3.0)
    assert number(scaled[0]) == 6.0
    with pytest.warns(DeprecationWarning, match="average"):
        assert number(hvd.allreduce(1.0, average=False)) == size()
    rounded = hvd.allreduce(
        np.float32(1 / 3), compression=hvd.Compression.fp16, op=hvd.Average, **kwargs
    )
    assert number(rounded) == np.float16(1 / 3)
    gathered = hvd.allgather(np.full((rank() + 1, 2), rank()))
    np.testing.assert_array_equal(
        gathered.numpy(), np.repeat(np.arange(size()), np.arange(1, size() + 1))[:, None] * [1, 1]
    )
    assert number(hvd.broadcast(rank() + 5, size() - 1, name="a number")) == size() + 4
    rows = hvd.reducescatter(np.ones((size(), 2)) * (rank() + 1), op=hvd.Sum)
    np.testing.assert_array_equal(rows.numpy(), np.full((1, 2), (every + 1).sum()))


def test_both_average_and_op_are_one_too_many(hvd):
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)


def test_broadcasting_global_variables_needs_a_graph(hvd):
    with pytest.raises(RuntimeError, match="broadcast_global_variables"):
        hvd.broadcast_global_variables(0)
