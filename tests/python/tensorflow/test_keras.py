"""Distributed optimizers of tf.keras: of Keras 3, or of Keras 2 with older releases."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf
from keras_callback_cases import *  # noqa: F403
from keras_cases import *  # noqa: F403
from keras_cases import (
    BATCH,
    MSE,
    STEPS,
    X,
    Y,
    apply_batches,
    assert_equal_on_all_ranks,
    assert_weights,
    fit,
    half_model,
    is_keras_3,
    kinds,
    make_model,
    make_optimizer,
    number,
    own_rows,
    rank,
    scale_of,
    scaling_of,
    size,
    whole_batch,
)
from keras_local_cases import *  # noqa: F403

import perseus.keras
import perseus.tensorflow.keras


@pytest.fixture
def keras():
    return tf.keras


@pytest.fixture
def hvd():
    return perseus.tensorflow.keras


@pytest.fixture
def gradients_of():
    def compute(model, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        return tape.gradient(loss, model.trainable_variables)

    return compute


@pytest.fixture
def partial():
    def make(optimizer, layer, scaled):
        return perseus.keras.PartialDistributedOptimizer(
            optimizer, local_layers=layer, scale_local_gradients=scaled
        )

    return make


@pytest.fixture
def accumulating(hvd):
    def make(optimizer, passes, averaged):
        return hvd.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=averaged
        )

    return make


# XLA, which has no way to reduce gradients


@pytest.fixture
def keras_3(keras):
    if not is_keras_3(keras):
        pytest.skip("is for Keras 3")
    return keras


def test_a_step_that_xla_compiles_is_refused(keras, hvd):
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), MSE, jit_compile=True)
    with pytest.raises(RuntimeError, match="jit_compile=False"):
        fit(model, own_rows(X), own_rows(Y))
    with pytest.raises(RuntimeError, match="jit_compile=False"):
        model.train_on_batch(own_rows(X), own_rows(Y))


@pytest.mark.parametrize("in_loss_scaling", [False, True])
def test_callbacks_turn_xla_off(keras, hvd, in_loss_scaling):
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    if in_loss_scaling:
        optimizer = scaling_of(keras)(optimizer)
    model.compile(optimizer, MSE, jit_compile=True)
    callback = hvd.callbacks.MetricAverageCallback()
    with pytest.warns(UserWarning, match="jit_compile=True is ignored"):
        fit(model, own_rows(X), own_rows(Y), callbacks=[callback])
    assert_weights(model, whole_batch(keras, epochs=1), 1e-3 if in_loss_scaling else 1e-6)


def test_callbacks_leave_xla_to_models_that_reduce_nothing(keras, hvd):
    model = make_model(keras)
    model.compile(keras.optimizers.SGD(0.1), MSE, jit_compile=True)
    hvd.callbacks.MetricAverageCallback().set_model(model)
    assert model.jit_compile


def test_xla_that_keras_chose_is_turned_off_without_a_warning(keras_3, hvd, monkeypatch, recwarn):
    model = make_model(keras_3)
    # As where there is a GPU.
    monkeypatch.setattr(type(model), "_resolve_auto_jit_compile", lambda self: True)
    model.compile(hvd.DistributedOptimizer(keras_3.optimizers.SGD(0.1)), MSE)
    assert model.jit_compile
    fit(
        model,
        own_rows(X),
        own_rows(Y),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert not [each for each in recwarn if "jit_compile" in str(each.message)]


# Process sets


@pytest.fixture
def first_ranks(keras, hvd):
    """All ranks but the last."""
    if size() < 2:
        pytest.skip("needs ranks that are in no set")
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    made = hvd.add_process_set(list(range(size() - 1)))
    yield made
    hvd.shutdown()
    hvd.init()


@pytest.mark.parametrize("own_loop", [False, True])
def test_ranks_outside_the_process_set_train_alone(keras, hvd, gradients_of, first_ranks, own_loop):
    for kind in ("sgd", "adam"):
        model = make_model(keras)
        optimizer = hvd.DistributedOptimizer(make_optimizer(keras, kind), process_set=first_ranks)
        inside = first_ranks.included()
        among = size() - 1
        batches = X.reshape(STEPS, -1, 4), Y.reshape(STEPS, -1, 3)
        shared = [each[:, : BATCH // among * among] for each in batches]
        mine = [each[:, rank() :: among] if inside else each for each in shared]
        x, y = (each.reshape(-1, each.shape[-1]) for each in mine)
        model.compile(optimizer, MSE)
        if own_loop:
            apply_batches(optimizer, model, gradients_of, x, y)
        else:
            fit(model, x, y)
        alone = make_model(keras)
        alone.compile(make_optimizer(keras, kind), MSE, run_eagerly=True)
        fit(alone, *(each.reshape(-1, each.shape[-1]) for each in shared))
        assert_weights(model, alone.get_weights())


def test_ranks_outside_the_process_set_step_by_their_own_gradients(keras, hvd, first_ranks):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer = scaling_of(keras)(
        hvd.DistributedOptimizer(optimizer, process_set=first_ranks, backward_passes_per_step=2),
        initial_scale=1024.0,
    )
    model = half_model(keras)
    model.compile(optimizer, MSE)
    before = model.get_weights()
    x, y = X.astype(np.float32), Y.astype(np.float32)
    model.train_on_batch(np.full_like(x, np.inf) if rank() == 0 else x, y)
    model.train_on_batch(x, y)
    assert scale_of(model.optimizer) == (512.0 if first_ranks.included() else 1024.0)
    same = all(map(np.array_equal, before, model.get_weights()))
    assert same == first_ranks.included()


def test_a_set_with_the_number_of_another_is_refused(keras, hvd, first_ranks):
    for number_ in (first_ranks.process_set_id, 0):
        fake = hvd.ProcessSet([0, 5])
        fake.process_set_id = number_
        with pytest.raises(ValueError, match="is not registered, and its number is that of"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(), process_set=fake)


# Sparse gradients


def embedding_model(keras):
    layers = [keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.layers.Input((2,), dtype="int32"), *layers])
    generator = np.random.default_rng(5)
    model.set_weights([generator.normal(size=weight.shape) for weight in model.get_weights()])
    return model


WORDS = np.random.default_rng(6).integers(0, 10, (STEPS * BATCH, 2))


def check_embeddings(keras, distribute, make):
    models = embedding_model(keras), embedding_model(keras)
    models[0].compile(distribute(make()), MSE)
    fit(models[0], own_rows(WORDS), own_rows(Y))
    models[1].compile(make(), MSE, run_eagerly=True)
    fit(models[1], WORDS, Y)
    assert_weights(models[0], models[1].get_weights(), 1e-5)


def test_gradients_of_embeddings_are_gathered(keras, hvd):
    for kind in kinds(keras):
        if "clipped" not in kind:  # by each slice's own norm
            check_embeddings(
                keras, hvd.DistributedOptimizer, lambda k=kind: make_optimizer(keras, k)
            )


def test_gradients_of_embeddings_are_made_dense(keras, hvd):
    def distribute(optimizer):
        return hvd.DistributedOptimizer(optimizer, sparse_as_dense=True)

    # Without slots, of which a sparse gradient leaves rows as they are.
    check_embeddings(keras, distribute, lambda: keras.optimizers.SGD(0.1))


def test_gradients_of_embeddings_are_added_up_as_dense_ones(keras, accumulating, hvd):
    model = embedding_model(keras)
    model.compile(accumulating(keras.optimizers.SGD(0.1), 2, False), MSE)
    with pytest.raises(ValueError, match="`sparse_as_dense` is False"):
        fit(model, own_rows(WORDS), own_rows(Y))
    dense = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=2, sparse_as_dense=True
    )
    model = embedding_model(keras)
    model.compile(dense, MSE)
    fit(model, own_rows(WORDS), own_rows(Y), 2)
    assert_equal_on_all_ranks(model.get_weights())


# Gradients of Keras 2, which several methods see


@pytest.fixture
def keras_2(keras):
    if is_keras_3(keras):
        pytest.skip("is for Keras 2")
    return keras


def test_computed_gradients_are_reduced_and_not_again_when_applied(keras_2, hvd):
    model = make_model(keras_2)
    optimizer = hvd.DistributedOptimizer(keras_2.optimizers.SGD(0.1), op=hvd.Sum)
    x, y = own_rows(X), own_rows(Y)

    @tf.function
    def step(halved):
        def loss():
            return tf.reduce_mean(tf.square(model(x) - y))

        pairs = optimizer.compute_gradients(loss, model.trainable_variables)
        if halved:
            pairs = [(gradient / 2, variable) for gradient, variable in pairs]
        optimizer.apply_gradients(pairs)
        return [gradient for gradient, _ in pairs]

    for halved in (False, True):
        before = model.get_weights()
        gradients = step(halved)
        assert_equal_on_all_ranks([gradient.numpy() for gradient in gradients])
        for weight, old, gradient in zip(model.get_weights(), before, gradients, strict=True):
            np.testing.assert_allclose(weight, old - 0.1 * gradient, atol=1e-6)


def test_gradients_are_applied_as_they_are_if_that_is_said(keras_2, hvd, two_ranks):
    for sgd, word in (
        (keras_2.optimizers.SGD, {"skip_gradients_aggregation": True}),
        (keras_2.optimizers.legacy.SGD, {"experimental_aggregate_gradients": False}),
    ):
        variable = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(sgd(1.0))
        optimizer.apply_gradients([(tf.constant(float(rank())), variable)], **word)
        assert variable.numpy() == -rank()
        optimizer.apply_gradients([(tf.constant(float(rank())), variable)])
        assert variable.numpy() == pytest.approx(-rank() - (size() - 1) / 2)


def both_sgds(keras):
    return [keras.optimizers.SGD, keras.optimizers.legacy.SGD]


def test_what_a_program_puts_in_place_of_computing_has_its_effect(keras_2, hvd):
    for sgd in both_sgds(keras_2):
        model = make_model(keras_2)
        optimizer = hvd.DistributedOptimizer(sgd(0.1, momentum=0.9))
        own, seen = optimizer._compute_gradients, []

        def compute_gradients(self, loss, var_list, grad_loss=None, tape=None, own=own, seen=seen):
            seen.append(len(var_list))
            return own(loss, var_list, grad_loss, tape)

        optimizer._compute_gradients = types.MethodType(compute_gradients, optimizer)
        model.compile(optimizer, MSE)
        fit(model, own_rows(X), own_rows(Y))
        assert seen and set(seen) == {4}
        assert_weights(model, whole_batch(keras_2, epochs=1))


@pytest.mark.parametrize("word", ["experimental_aggregate_gradients", None])
def test_sums_of_several_passes_are_computed_and_applied_in_the_last(keras_2, hvd, word):
    """Horovod's own tests do that, and look at the counter."""
    for sgd in both_sgds(keras_2):
        variable, local = tf.Variable([0.0]), tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=3)
        optimizer.register_local_var(local)
        assert int(optimizer._agg_helper.counter.numpy()) == 0

        @tf.function
        def step(optimizer=optimizer, variables=(variable, local)):
            def loss():
                return tf.add_n(variables) * (rank() + 1.0)

            pairs = optimizer._compute_gradients(loss, list(variables))
            optimizer.apply_gradients(pairs, **({word: False} if word else {}))

        for turn in range(1, 8):
            step()
            assert int(optimizer._agg_helper.counter.numpy()) == turn % 3
            assert int(number(optimizer.iterations)) == turn
            steps = turn // 3
            np.testing.assert_allclose(variable, [-steps * 3 * (size() + 1) / 2], rtol=1e-6)
            np.testing.assert_allclose(local, [-steps * 3 * (rank() + 1) / size()], rtol=1e-6)


def test_with_one_pass_there_is_nothing_to_add_up(keras_2, hvd):
    for sgd in both_sgds(keras_2):
        assert hvd.DistributedOptimizer(sgd())._agg_helper is None


def test_gradients_of_a_v1_graph_are_reduced(keras_2, hvd):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(keras_2.optimizers.legacy.SGD(1.0), op=hvd.Sum)
        value = tf.reduce_sum(variable) * (rank() + 1.0)
        (gradient,) = optimizer.get_gradients(value, [variable])
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(gradient), [size() * (size() + 1) / 2] * 2)


def test_in_a_v1_graph_functions_give_values(hvd):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(rank() + 1.0)
        session.run(tf.compat.v1.global_variables_initializer())
        hvd.broadcast_global_variables(0)
        assert session.run(variable) == 1.0
        assert hvd.allreduce(rank() + 1, op=hvd.Sum) == size() * (size() + 1) // 2
        assert hvd.broadcast(rank() + 1, 0) == 1
        assert hvd.allgather([rank()]).tolist() == list(range(size()))
        assert hvd.reducescatter(np.ones(size()), op=hvd.Sum).tolist() == [size()]


def test_a_v1_graph_is_trained_with_callbacks(keras_2, hvd):
    """Before, the broadcast was added to the graph and never run."""
    with tf.Graph().as_default(), tf.compat.v1.Session():
        model = keras_2.Sequential([keras_2.layers.Dense(1, input_shape=X.shape[1:])])
        sgd = keras_2.optimizers.legacy.SGD(0.01, momentum=0.9)
        model.compile(hvd.DistributedOptimizer(sgd), "mse")
        model.set_weights([weight + rank() for weight in model.get_weights()])
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
            hvd.callbacks.LearningRateScheduleCallback(0.01, 0.5, start_epoch=1),
        ]
        rows, wanted = own_rows(X), own_rows(Y)[..., :1]
        history = model.fit(rows, wanted, epochs=3, verbose=0, callbacks=callbacks).history
        assert_equal_on_all_ranks(model.get_weights())
        np.testing.assert_allclose(history["lr"], [0.01, 0.01, 0.005], rtol=1e-6)


@pytest.mark.parametrize("kind", ["tensorflow", "keras"])
def test_a_state_of_a_v1_graph(keras_2, hvd, kind):
    import perseus.tensorflow.horovod.elastic as tensorflow_s

    with tf.Graph().as_default() as graph, tf.compat.v1.Session():
        model = keras_2.Sequential([keras_2.layers.Dense(1, input_shape=X.shape[1:])])
        adam = keras_2.optimizers.legacy.Adam(0.01)
        model.compile(hvd.DistributedOptimizer(adam), "mse")
        rows, wanted = own_rows(X), own_rows(Y)[..., :1]
        model.fit(rows, wanted, verbose=0)
        model.set_weights([weight + rank() for weight in model.get_weights()])
        of_kind = {"tensorflow": tensorflow_s.TensorFlowKerasState, "keras": hvd.elastic.KerasState}
        state = of_kind[kind](model, epoch=rank())
        state.sync()
        assert state.epoch == 0
        assert_equal_on_all_ranks(model.get_weights())
        before = [*model.get_weights(), *adam.get_weights()]
        operations = len(graph.get_operations())
        for _ in range(2):
            model.fit(rows, wanted, verbose=0)
            assert not np.array_equal(model.get_weights()[0], before[0])
            state.epoch = 1
            state.restore()
            assert state.epoch == 0
            for ours, saved in zip(
                [*model.get_weights(), *adam.get_weights()], before, strict=True
            ):
                np.testing.assert_array_equal(ours, saved)
            state.commit()
        assert len(graph.get_operations()) == operations


# The interfaces


def test_keras_by_itself_runs_on_tensorflow_too(keras, gradients_of):
    hvd = perseus.keras
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(make_optimizer(keras, "sgd")), MSE)
    fit(model, own_rows(X), own_rows(Y))
    assert_weights(model, whole_batch(keras, epochs=1))
    assert number(hvd.allreduce(1.0)) == 1.0
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(1.0, op=hvd.Sum)
    with pytest.raises(ValueError, match=r"All local layers must be of keras\.layers\.Layer type"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=["dense"])


def test_the_interface_goes_by_two_names():
    import perseus.tensorflow.horovod.keras as long
    import perseus.tensorflow.keras.callbacks
    import perseus.tensorflow.keras.elastic

    short = perseus.tensorflow.keras
    assert short.DistributedOptimizer is long.DistributedOptimizer
    assert short.callbacks.MetricAverageCallback is long.callbacks.MetricAverageCallback
    assert short.elastic.KerasState is long.elastic.KerasState
