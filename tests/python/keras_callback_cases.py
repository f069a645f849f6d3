"""Tests of the callbacks for Keras, and of elastic state, on every backend and version."""

from __future__ import annotations

import numpy as np
import pytest
from keras_cases import (
    MSE,
    STEPS,
    X,
    Y,
    assert_equal_on_all_ranks,
    assert_weights,
    fit,
    is_keras_3,
    kinds,
    make_model,
    make_optimizer,
    number,
    own_rows,
    rank,
    size,
    slots,
)
from keras_local_cases import hybrid_model, local_weights


def model_of_rank(keras, hvd, of_rank, kind="sgd"):
    """Returns a model with weights that no other rank has."""
    model = make_model(keras, seed=of_rank)
    optimizer = hvd.DistributedOptimizer(make_optimizer(keras, kind))
    model.compile(optimizer, MSE, run_eagerly=True)
    return model


class Recording:
    """Records a callback's view at the end of batches and epochs."""

    def __new__(cls, keras, look):
        seen = []

        class Callback(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                seen.append(look(self.model))

        return Callback(), seen


# Broadcasting


def test_broadcast_makes_models_and_optimizers_the_same(keras, hvd):
    root = size() - 1
    for kind in ("sgd", "adam"):
        model = model_of_rank(keras, hvd, rank(), kind)
        fit(model, X[: 3 * (rank() + 1)], Y[: 3 * (rank() + 1)])  # other slots on every rank
        model.optimizer.learning_rate = 0.01 * (rank() + 1)
        fit(model, X, Y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
        assert_equal_on_all_ranks(model.get_weights())
        assert_equal_on_all_ranks(slots(model.optimizer))
        assert number(model.optimizer.learning_rate) == pytest.approx(0.01 * size())


def test_broadcast_comes_after_the_first_batch_and_once(keras, hvd, two_ranks):
    model = model_of_rank(keras, hvd, rank())
    recording, seen = Recording(keras, lambda model: model.get_weights())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, X, Y, callbacks=[callback, recording])
    assert_equal_on_all_ranks(seen[1])
    with pytest.raises(AssertionError):
        assert_equal_on_all_ranks(seen[0])

    own = [weight + rank() for weight in model.get_weights()]
    model.set_weights(own)
    fit(model, X, Y, callbacks=[callback])
    with pytest.raises(AssertionError):
        assert_equal_on_all_ranks(model.get_weights())


def test_local_variables_are_not_broadcast(keras, hvd, two_ranks):
    model = model_of_rank(keras, hvd, rank())
    first, second = model.layers
    for layer in (first, second):
        for weight in layer.trainable_weights:
            model.optimizer.register_local_var(weight)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=[first.kernel, first.bias]
    )
    callback.register_local_var(second.bias)
    model.optimizer.learning_rate = 0.0
    before = model.get_weights()
    fit(model, X, Y, callbacks=[callback])
    after = model.get_weights()
    assert all(map(np.array_equal, [before[i] for i in (0, 1, 3)], [after[i] for i in (0, 1, 3)]))
    assert_equal_on_all_ranks(after[2])
    with pytest.raises(ValueError, match=r"All local variables must be of tf\.Variable type"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1.0])


def test_local_variables_may_be_differently_many_and_have_slots(keras, hvd, two_ranks):
    for kind in kinds(keras):
        if kind == "clipped":
            continue
        model = hybrid_model(keras)
        model.set_weights([weight + rank() for weight in model.get_weights()])
        optimizer = hvd.DistributedOptimizer(make_optimizer(keras, kind))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        for weight in local_weights(model):
            optimizer.register_local_var(weight)
            callback.register_local_var(weight)
        model.compile(optimizer, MSE, run_eagerly=True)
        fit(model, own_rows(X), own_rows(Y), callbacks=[callback])
        assert_equal_on_all_ranks(model.get_weights()[-2:])
        with pytest.raises(AssertionError):
            assert_equal_on_all_ranks(model.get_weights()[:2])


def test_broadcast_takes_the_state_of_random_generators(keras, hvd):
    inputs = keras.layers.Input((4,))
    layers = [keras.layers.Dropout(0.5, seed=rank()), keras.layers.Dense(3)]
    model = keras.Sequential([inputs, *layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), MSE)
    fit(model, X, Y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    if is_keras_3(keras):
        seeds = [np.array(generator.state.numpy()) for generator in layers[0]._seed_generators]
        assert seeds
        assert_equal_on_all_ranks(seeds)
    assert_equal_on_all_ranks(model.get_weights())


def test_ranks_with_other_models_are_told(keras, hvd, two_ranks):
    model = make_model(keras)
    if rank() == 1:
        model.add(keras.layers.Dense(3, dtype="float64"))
    model.compile(keras.optimizers.SGD(0.1), MSE)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(ValueError, match="different variables to broadcast: rank 0 has"):
        fit(model, X, Y, callbacks=[callback])


# Metrics


def test_metrics_are_averaged_for_the_callbacks_that_follow(keras, hvd):
    logs = {"loss": rank() + 1.0, "each": np.full(3, rank()), "accuracy": 0.25}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    mean = np.mean(np.arange(size()))
    assert logs["loss"] == pytest.approx(mean + 1)
    assert isinstance(logs["loss"], float)
    np.testing.assert_allclose(logs["each"], np.full(3, mean))
    assert logs["accuracy"] == pytest.approx(0.25)


def test_a_history_has_the_average(keras, hvd):
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), MSE)
    callback = hvd.callbacks.MetricAverageCallback()
    history = fit(model, own_rows(X), own_rows(Y), callbacks=[callback]).history
    whole = fit(model, X, Y).history
    assert history["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_ranks_with_other_metrics_are_told(hvd, two_ranks):
    logs = {"loss": 1.0, **({"mae": 2.0} if rank() == 1 else {})}
    with pytest.raises(ValueError, match=r"different metrics: rank 0 has.*'mae'"):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)


def test_metrics_that_are_no_numbers_are_told(hvd):
    with pytest.raises(ValueError, match="the metric note is 'abc', which cannot be averaged"):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, "note": "abc"})


# Learning rates


def rates_of(keras, hvd, callback, epochs=3, eager=False, look=None):
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5))
    model.compile(optimizer, MSE, run_eagerly=eager)
    recording, seen = Recording(
        keras, look or (lambda model: number(model.optimizer.learning_rate))
    )
    history = fit(model, own_rows(X), own_rows(Y), epochs, callbacks=[callback, recording])
    return seen, history.history["lr"], model


def test_a_staircase_of_learning_rates(keras, hvd):
    callback = hvd.callbacks.LearningRateScheduleCallback(0.2, 0.1, start_epoch=1, end_epoch=3)
    seen, logged, _ = rates_of(keras, hvd, callback, epochs=4)
    by_epoch = [0.5, 0.2, 0.02, 0.02]
    np.testing.assert_allclose(seen, np.repeat(by_epoch, STEPS), rtol=1e-6)
    np.testing.assert_allclose(logged, by_epoch, rtol=1e-6)


def test_a_learning_rate_that_changes_with_each_batch(keras, hvd):
    callback = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 1 + epoch, staircase=False
    )
    seen, _, _ = rates_of(keras, hvd, callback)
    expected = [0.1 * (1 + epoch + batch / STEPS) for epoch in range(3) for batch in range(STEPS)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_warm_up_begins_with_the_rate_of_one_rank(keras, hvd, capsys):
    callback = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    seen, logged, _ = rates_of(keras, hvd, callback)
    steps = np.arange(1, 2 * STEPS + 1)
    rising = 0.4 / size() * (steps / STEPS * (size() - 1) / 2 + 1)
    np.testing.assert_allclose(seen, [*rising, *[0.4] * STEPS], rtol=1e-6)
    np.testing.assert_allclose(logged[1:], [0.4, 0.4], rtol=1e-6)
    said = "Epoch 2: the learning rate has warmed up to 0.4."
    assert (said in capsys.readouterr().out) == (rank() == 0)


def test_momentum_is_corrected_where_each_step_reads_it(keras, hvd):
    schedule = hvd.callbacks.LearningRateScheduleCallback
    look = lambda model: number(model.optimizer.momentum)  # noqa: E731
    seen, _, model = rates_of(keras, hvd, schedule(0.5, 0.1), epochs=2, eager=True, look=look)
    # 0.5 -> 0.05 before the first batch of the second epoch.
    np.testing.assert_allclose(seen, [*[0.5] * STEPS, 0.05, *[0.5] * (STEPS - 1)], rtol=1e-6)
    assert number(model.optimizer.momentum) == 0.5
    seen, _, _ = rates_of(
        keras, hvd, schedule(0.5, 0.1, momentum_correction=False), 2, eager=True, look=look
    )
    assert seen == [0.5] * 2 * STEPS


def test_what_a_schedule_needs_is_asked_for(keras, hvd):
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)
    callback = hvd.callbacks.LearningRateWarmupCallback(0.1)
    callback.set_params({})
    with pytest.raises(ValueError, match="steps_per_epoch"):
        callback.on_train_begin()
    callback.set_params({"steps": 7})
    callback.on_train_begin()
    assert callback.steps_per_epoch == 7


# Checkpoints


def test_the_best_model_is_saved_where_it_is_said_later(keras, hvd, tmp_path):
    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), MSE)
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="filepath"):
        fit(model, X, Y, callbacks=[checkpoint])
    # Keras 2.13 cannot save the best one alone in its new form.
    form = "keras" if is_keras_3(keras) else "h5"
    checkpoint.filepath = str(tmp_path / f"best-{rank()}.{form}")
    fit(model, X, Y, callbacks=[checkpoint])
    assert_weights(keras.models.load_model(checkpoint.filepath), model.get_weights(), 0.0)


# Elastic state


def test_state_goes_back_to_the_last_commit(keras, hvd):
    for kind in ("sgd", "adam"):
        model = model_of_rank(keras, hvd, 0, kind)
        state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        weights = model.get_weights()
        fit(model, own_rows(X), own_rows(Y))
        state.epoch = 5
        state.restore()  # there was no commit: to how it was at first
        assert_weights(model, weights, 0.0)
        assert state.epoch == 0
        assert int(number(model.optimizer.iterations)) == 0

        fit(model, own_rows(X), own_rows(Y))
        state.epoch = 1
        state.commit()
        weights, of_optimizer = model.get_weights(), slots(model.optimizer)
        fit(model, own_rows(X), own_rows(Y))
        after = model.get_weights()
        state.restore()
        assert_weights(model, weights, 0.0)
        assert all(map(np.array_equal, slots(model.optimizer), of_optimizer))
        assert state.epoch == 1
        fit(model, own_rows(X), own_rows(Y))
        assert_weights(model, after, 1e-12)


def test_sync_gives_all_ranks_rank_0s_state(keras, hvd):
    model = model_of_rank(keras, hvd, rank(), "adam")
    fit(model, own_rows(X), own_rows(Y))
    model.set_weights([weight + rank() for weight in model.get_weights()])
    mine = model.get_weights()
    state = hvd.elastic.KerasState(model, batch=rank() + 3)
    state.sync()
    assert_equal_on_all_ranks(model.get_weights())
    assert_equal_on_all_ranks(slots(model.optimizer))
    assert state.batch == 3
    if rank() == 0:
        assert_weights(model, mine, 0.0)
    weights = model.get_weights()
    model.set_weights([weight * 0 for weight in weights])
    state.restore()
    assert_weights(model, weights, 0.0)


def test_passes_that_were_added_up_before_a_loss_are_forgotten(
    keras, hvd, accumulating, gradients_of
):
    model = make_model(keras)
    optimizer = accumulating(keras.optimizers.SGD(0.1), 2, False)
    state = hvd.elastic.KerasState(model, optimizer)

    def one_pass(factor):
        gradients = gradients_of(model, X, Y)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients([(gradient * factor, weight) for gradient, weight in pairs])

    before = model.get_weights()
    one_pass(1e6)
    state.restore()
    one_pass(0.0)
    assert_weights(model, before, 0.0)
    one_pass(0.0)
    assert_weights(model, before, 0.0)


def test_a_model_that_is_not_built_has_no_state(keras, hvd):
    with pytest.raises(ValueError, match="not built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(2)]))


def counting_state(keras, hvd, **attributes):
    """A state whose `commits` are its epoch and batch at each commit."""

    class Counting(hvd.elastic.KerasState):
        commits = ()

        def commit(self):
            self.commits += ((self.epoch, self.batch),)
            super().commit()

    return Counting(model_of_rank(keras, hvd, 0), **attributes)


@pytest.mark.parametrize("commits_first", [False, True])
def test_callbacks_keep_the_state_up_to_date(keras, hvd, commits_first):
    state = counting_state(keras, hvd, batch=1, epoch=0)
    of = hvd.elastic
    updates = [of.UpdateBatchStateCallback(state), of.UpdateEpochStateCallback(state)]
    commits = of.CommitStateCallback(state, 2)
    steps = []

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            steps.append(self.params["steps"])

    callbacks = [commits, *updates] if commits_first else [*updates, commits]
    fit(state.model, own_rows(X), own_rows(Y), 2, callbacks=[*callbacks, Steps()])
    assert state.commits == ((0, 1), (1, 0), (1, 1), (2, 0))
    assert steps == [STEPS - 1, STEPS]
    fit(state.model, own_rows(X), own_rows(Y), 1, callbacks=updates)
    assert state.epoch == 3


@pytest.mark.parametrize("initial", [0, 5])
def test_fit_may_count_its_epochs_from_the_state_s(keras, hvd, initial):
    state = counting_state(keras, hvd, batch=0, epoch=5)
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, 100),
    ]
    x, y = own_rows(X), own_rows(Y)
    options = {"epochs": initial + 2, "initial_epoch": initial, "shuffle": False, "verbose": 0}
    for _ in range(2):
        state.epoch = 5
        state.model.fit(x, y, callbacks=callbacks, **options)
        assert state.epoch == 7
    assert state.commits == 2 * ((6, 0), (7, 0))


def test_a_save_needs_no_new_memory(keras, hvd):
    state = hvd.elastic.KerasState(model_of_rank(keras, hvd, 0, "adam"))
    before = [id(each) for each in state._saved]
    fit(state.model, own_rows(X), own_rows(Y))
    state.save()
    if isinstance(state._saved[0], np.ndarray):
        assert [id(each) for each in state._saved] == before
    else:  # tensors of TensorFlow, which are the variables' own until these are written to
        present = state._backend.values_of(state._variables)
        assert [np.asarray(each).ctypes.data for each in state._saved] == [
            each.ctypes.data for each in present
        ]
    weights = state.model.get_weights()
    for _ in range(2):  # what is restored is trained on, and must not be what is saved
        fit(state.model, own_rows(X), own_rows(Y))
        state.restore()
        assert_weights(state.model, weights, 0.0)


def test_a_state_has_a_sampler(keras, hvd):
    sampler = hvd.elastic.ElasticSampler(range(10 * size()), shuffle=False)
    state = hvd.elastic.KerasState(model_of_rank(keras, hvd, 0), sampler=sampler, epoch=0)
    sampler.record_batch(0, 1 + rank())
    state.sync()
    assert state.sampler is sampler
    assert sampler.remaining_indices[0] == size()
    sampler.record_batch(0, 2)
    state.commit()
    sampler.record_batch(0, 2)
    state.restore()
    state.on_reset()
    state.join_progress()
    assert list(sampler) == list(range(3 * size() + rank(), 10 * size(), size()))
