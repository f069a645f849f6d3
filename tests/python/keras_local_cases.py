"""Tests of local variables, and of methods that programs replace; on every backend and version.

The fixtures are those of keras_cases.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
from keras_cases import (
    MSE,
    STEPS,
    X,
    Y,
    apply_batches,
    assert_equal_on_all_ranks,
    assert_weights,
    fit,
    half_model,
    kinds,
    make_model,
    own_rows,
    rank,
    scale_of,
    scaled_optimizers,
    size,
)

import perseus_core


def local_step(keras, gradients_of, model, x, y, scale):
    """Returns the weights after a step; the first layer uses only this rank's gradients."""
    mine = gradients_of(model, x, y)
    arrays = [np.array(each.numpy()) for each in mine]
    averaged = [perseus_core.allreduce(each) for each in arrays]
    steps = [arrays[0] / scale, arrays[1] / scale, *averaged[2:]]
    return [
        weight - np.float64(np.float32(0.1)) * step
        for weight, step in zip(model.get_weights(), steps, strict=True)
    ]


@pytest.mark.parametrize("scaled", [True, False])
def test_a_partial_optimizer_leaves_layers_to_their_ranks(keras, partial, gradients_of, scaled):
    model = make_model(keras)
    x, y = own_rows(X), own_rows(Y)
    expected = local_step(keras, gradients_of, model, x, y, size() if scaled else 1)
    optimizer = partial(keras.optimizers.SGD(0.1), model.layers[0], scaled)
    gradients = gradients_of(model, x, y)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert_weights(model, expected)


def hybrid_model(keras):
    """Returns a model with one local layer on rank 0, one more on each further rank, and a shared.

    Like embeddings that are divided among the ranks, and the layers after them.
    """
    local = [keras.layers.Dense(4, activation="tanh", dtype="float64") for _ in range(1 + rank())]
    shared = keras.layers.Dense(3, dtype="float64")
    inputs = keras.layers.Input((4,), dtype="float64")
    model = keras.Sequential([inputs, *local, shared])
    generator = np.random.default_rng(11)
    shapes = [weight.shape for weight in shared.get_weights()]
    shared.set_weights([generator.normal(size=shape) for shape in shapes])
    generator = np.random.default_rng([12, rank()])
    for layer in local:
        layer.set_weights([generator.normal(size=each.shape) for each in layer.get_weights()])
    return model


def local_weights(model):
    return [weight for layer in model.layers[:-1] for weight in layer.trainable_weights]


def hybrid_steps(gradients_of, model, x, y, rate=0.1, scale=None):
    """Returns the weights of a hybrid model after it has run over the data in STEPS steps."""
    weights, before = model.get_weights(), model.get_weights()
    rows = len(x) // STEPS
    for step in range(STEPS):
        part = slice(step * rows, (step + 1) * rows)
        mine = [np.array(each.numpy()) for each in gradients_of(model, x[part], y[part])]
        averaged = [perseus_core.allreduce(each) for each in mine[-2:]]
        taken = [each / (scale or size()) for each in mine[:-2]] + averaged
        weights = [
            weight - np.float64(np.float32(rate)) * each
            for weight, each in zip(weights, taken, strict=True)
        ]
        model.set_weights(weights)
    model.set_weights(before)
    return weights


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 1}, {"gradient_predivide_factor": 2.0}, {"scale_local_gradients": False}],
    ids=str,
)
def test_ranks_may_have_different_numbers_of_local_variables(keras, hvd, gradients_of, options):
    for kind in kinds(keras):
        if "sgd" not in kind:
            continue
        if "scale_local_gradients" in options and hvd.__name__ == "perseus.keras":
            continue  # its optimizers that have it take layers
        model = hybrid_model(keras)
        x, y = own_rows(X), own_rows(Y)
        scale = 1 if options.get("scale_local_gradients") is False else None
        expected = hybrid_steps(gradients_of, model, x, y, scale=scale)
        sgd = keras.optimizers.legacy.SGD if "legacy" in kind else keras.optimizers.SGD
        optimizer = hvd.DistributedOptimizer(sgd(0.1), **options)
        for weight in local_weights(model):
            optimizer.register_local_var(weight)
        model.compile(optimizer, MSE)
        fit(model, x, y)
        assert_weights(model, expected)


def test_ranks_may_have_different_numbers_of_local_layers(keras, partial, gradients_of):
    model = hybrid_model(keras)
    x, y = own_rows(X), own_rows(Y)
    expected = hybrid_steps(gradients_of, model, x, y)
    optimizer = partial(keras.optimizers.SGD(0.1), model.layers[:-1], True)
    apply_batches(optimizer, model, gradients_of, x, y)
    assert_weights(model, expected)


def test_a_rank_may_have_no_local_variables_and_others_some(keras, hvd, gradients_of, two_ranks):
    model = make_model(keras)
    x, y = own_rows(X), own_rows(Y)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    # What is shared comes first here, and the last layer is shared by none.
    last = model.layers[-1].trainable_weights
    for weight in last:
        optimizer.register_local_var(weight)
    variables = list(model.trainable_variables)[: 2 if rank() == 0 else 4]
    mine = list(gradients_of(model, x, y))[: len(variables)]
    averaged = [perseus_core.allreduce(np.array(each.numpy())) for each in mine[:2]]
    before = model.get_weights()
    optimizer.apply_gradients(zip(mine, variables, strict=True))
    for weight, old, gradient in zip(model.get_weights()[:2], before[:2], averaged, strict=True):
        np.testing.assert_allclose(weight, old - 0.1 * gradient, atol=1e-7)
    changed = not np.array_equal(model.get_weights()[2], before[2])
    assert changed == (rank() != 0)


# Scaled losses


def test_ranks_agree_on_a_step_with_local_layers(keras, hvd, gradients_of):
    for optimizer in scaled_optimizers(keras, hvd.DistributedOptimizer):
        ours = optimizer
        if not hasattr(ours, "register_local_var"):
            ours = optimizer.inner_optimizer
        model = half_model(keras)
        for layer in model.layers:
            for weight in layer.trainable_weights:
                ours.register_local_var(weight)
        model.compile(optimizer, MSE)
        x, y = own_rows(X).astype(np.float32), own_rows(Y).astype(np.float32)
        model.train_on_batch(x, y)
        before = model.get_weights()
        model.train_on_batch(np.full_like(x, np.inf) if rank() == size() - 1 else x, y)
        assert all(map(np.array_equal, before, model.get_weights()))
        assert scale_of(model.optimizer) == 512.0
        model.train_on_batch(x, y)
        assert not all(map(np.array_equal, before, model.get_weights()))
        assert scale_of(model.optimizer) == 512.0


def test_ranks_agree_on_a_step_though_some_have_no_local_layers(keras, hvd, gradients_of):
    for optimizer in scaled_optimizers(keras, hvd.DistributedOptimizer):
        ours = optimizer
        if not hasattr(ours, "register_local_var"):
            ours = optimizer.inner_optimizer
        model = make_model(keras, dtype="float32")
        if rank() == size() - 1:
            for weight in model.layers[0].trainable_weights:
                ours.register_local_var(weight)
        shared = 2 if size() > 1 else 0
        x, y = own_rows(X).astype(np.float32), own_rows(Y).astype(np.float32)
        variables = list(model.trainable_variables)
        gradients = gradients_of(model, x, y)
        for wrong in (False, True, False):
            before = model.get_weights()
            mine = [each * 1024.0 for each in gradients]  # which may be reduced in place
            if rank() != size() - 1:
                # The first layer is the last rank's alone.
                mine, used = mine[2:], variables[2:]
            else:
                used = variables
                mine[0] = mine[0] * float("inf") if wrong else mine[0]
            optimizer.apply_gradients(zip(mine, used, strict=True))
            same = list(map(np.array_equal, before, model.get_weights()))
            assert all(same) if wrong else not any(same[shared:])
        assert_equal_on_all_ranks(model.get_weights()[2:])


# What programs for Horovod put in place of an optimizer's methods


def replace_as_distributed_embeddings_does(optimizer, is_local):
    """Registers local variables when gradients come, and names the others by position.

    Returns how many gradients each reduction had.
    """
    reduced = []

    def register_then_allreduce(self, grads, variables):
        for each in variables:
            if is_local(each):
                self.register_local_var(each)
        return self.raw_allreduce(grads, variables)

    def named_allreduce_grads(self, grads, variables):
        reduced.append(len(grads))
        return self.raw_allreduce_grads(grads, variables, use_generic_names=True)

    optimizer.raw_allreduce = optimizer._allreduce
    optimizer._allreduce = types.MethodType(register_then_allreduce, optimizer)
    optimizer.raw_allreduce_grads = optimizer._allreduce_grads
    optimizer._allreduce_grads = types.MethodType(named_allreduce_grads, optimizer)
    return reduced


@pytest.mark.parametrize("passes", [1, 2])
def test_what_a_program_puts_in_place_of_the_reduction_has_its_effect(
    keras, accumulating, gradients_of, passes
):
    for kind in kinds(keras):
        if "sgd" not in kind:
            continue
        for in_fit in (True, False):
            model = hybrid_model(keras)
            x, y = own_rows(X), own_rows(Y)
            expected = hybrid_steps(gradients_of, model, x, y)
            sgd = keras.optimizers.legacy.SGD if "legacy" in kind else keras.optimizers.SGD
            optimizer = accumulating(sgd(0.1), passes, True)
            local = {id(each) for each in local_weights(model)}
            reduced = replace_as_distributed_embeddings_does(
                optimizer, lambda each, local=local: id(each) in local
            )
            # Every pass of a step has the same rows.
            of_steps = np.arange(len(x)).reshape(STEPS, -1)
            order = np.repeat(of_steps, passes, axis=0).ravel()
            if in_fit:
                model.compile(optimizer, MSE)
                rows = len(x) // STEPS
                model.fit(x[order], y[order], batch_size=rows, shuffle=False, verbose=0)
            else:
                for rows in np.repeat(of_steps, passes, axis=0):
                    gradients = gradients_of(model, x[rows], y[rows])
                    pairs = zip(gradients, model.trainable_variables, strict=True)
                    optimizer.apply_gradients(pairs)
            assert_weights(model, expected)
            assert reduced and set(reduced) == {2}  # kernel and bias
