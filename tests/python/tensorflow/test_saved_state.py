"""What a state keeps of variables, and the values that a rank which lacks them gets from others."""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf

import perseus.tensorflow.horovod as hvd
import perseus_core as core

v1 = tf.compat.v1


@pytest.mark.parametrize("kind", ["variables", "session", "keras"])
def test_a_rank_that_lacks_the_state_gets_it_from_those_that_have_it(kind):
    has_state = hvd.rank() == 0 or hvd.rank() < hvd.size() - 1
    values = [
        np.arange(70_000, dtype=np.float32),
        tf.constant([1.5, 2.5], tf.bfloat16).numpy(),
        np.int64(7),
        np.zeros((0, 3)),
        np.float64(100 + hvd.rank()),  # of each rank's own
    ]
    first = [value if has_state else np.zeros_like(value) for value in values]
    with tf.Graph().as_default() if kind == "session" else contextlib.nullcontext():
        variables = [tf.Variable(value) for value in first]
        if kind == "session":
            with v1.Session() as session:
                session.run([each.initializer for each in variables])
                found = after_sync(hvd.elastic.TensorFlowState(variables, session), has_state)
        elif kind == "variables":
            found = after_sync(hvd.elastic.TensorFlowState(variables), has_state)
        else:
            model = types.SimpleNamespace(built=True, metrics=[], variables=variables)
            state = hvd.elastic.TensorFlowKerasState(model)
            found = after_sync(state, has_state)
    values[-1] = np.float64(100)
    for ours, wanted in zip(found, values, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def after_sync(state, has_state):
    """Syncs a state, and returns what it would restore."""
    state._commits = int(has_state)
    assert state.needs_sync() == (hvd.size() > 1)
    state.sync_from_holders()
    return state._saved


def updates_of(kind):
    """Returns a variable, and a function that writes to it in one of TensorFlow's ways."""
    if kind == "generator":
        generator = tf.random.Generator.from_seed(1)
        return generator.state, lambda: generator.normal([3])
    variable = tf.Variable(np.arange(12, dtype=np.float32).reshape(6, 2))
    rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4]), tf.constant([6, 2]))
    dense, sparse = (v1.train.AdamOptimizer(0.1) for _ in range(2))
    add = tf.function(lambda: variable.assign_add(tf.ones([6, 2])))
    compiled = tf.function(lambda: variable.assign_sub(tf.ones([6, 2])), jit_compile=True)
    return variable, {
        "assign": lambda: variable.assign(2 * variable),
        "add": add,
        "compiled": compiled,
        "dense": lambda: dense.apply_gradients([(tf.ones([6, 2]), variable)]),
        "sparse": lambda: sparse.apply_gradients([(rows, variable)]),
        "scatter": lambda: variable.scatter_add(rows),
        "scatter_nd": lambda: variable.scatter_nd_update([[0, 1]], [variable[0, 1] + 1.0]),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["assign", "add", "compiled", "dense", "sparse", "scatter", "scatter_nd", "generator"],
)
def test_a_saved_state_stays_as_it_is_whatever_writes_to_its_variable(kind):
    variable, update = updates_of(kind)
    state = hvd.elastic.TensorFlowState([variable])
    for _ in range(3):
        update()
        state.save()
        saved = np.array(variable.read_value())
        for _ in range(2):
            update()
            assert not np.array_equal(variable.numpy(), saved)
            state.restore()
            np.testing.assert_array_equal(variable.numpy(), saved)
        update()


def test_a_save_copies_no_variables():
    variable = tf.Variable(np.zeros(1000))
    state = hvd.elastic.TensorFlowState([variable])

    def address(tensor):
        return np.asarray(tensor).ctypes.data

    for _ in range(2):
        variable.assign_add(np.ones(1000))
        state.save()
        assert address(state._saved[0]) == address(variable.read_value())


def test_in_a_graph_rank_0_gives_only_what_others_do_not_have():
    if hvd.size() < 3:
        pytest.skip("one rank has the state, and all of it alike")
    has_state = hvd.rank() < hvd.size() - 1
    with tf.Graph().as_default(), v1.Session() as session:
        large = tf.Variable(np.full(50_000, float(has_state), np.float32))
        own = tf.Variable(100.0 + hvd.rank())
        session.run([large.initializer, own.initializer])
        before = core.counters()["bytes_broadcast"]
        saved = after_sync(hvd.elastic.TensorFlowState([large, own], session), has_state)
        moved = core.counters()["bytes_broadcast"] - before
    np.testing.assert_array_equal(saved[0], np.ones(50_000))
    assert saved[1] == 100.0
    takes_part = hvd.rank() in (0, hvd.size() - 1)
    assert 200_000 * takes_part <= moved < 200_000 * takes_part + 10_000


def test_all_ranks_are_told_if_one_has_other_variables():
    if hvd.size() == 1:
        pytest.skip("nobody lacks the state")
    lacks = hvd.rank() == hvd.size() - 1
    variables = [tf.Variable(1.0) for _ in range(3 if lacks else 2)]
    state = hvd.elastic.TensorFlowState(variables)
    state._commits = int(not lacks)
    assert state.needs_sync()
    last = hvd.size() - 1
    wanted = f"state of rank {last} has 3 tensors, that of rank 0 2; tensor 2 is '2' on rank {last}"
    with pytest.raises(ValueError, match=wanted):
        state.sync_from_holders()
