"""TensorFlow's own optimizers with gradients of all ranks, in graphs and eagerly."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import perseus.tensorflow.horovod as hvd

v1 = tf.compat.v1
RATE = 0.125
START = np.array([1.0, -2.0, 3.0])


def target(rank, turn):
    return np.random.default_rng([rank, turn]).normal(size=3)


def gradient(x, rank, turn):
    """Returns the gradient of the sum of squares of `x` minus the target."""
    return 2 * (x - target(rank, turn))


def mean_gradient(x, turn):
    return np.mean([gradient(x, rank, turn) for rank in range(hvd.size())], axis=0)


def trained(make_optimizer, turns, resource=True, **options):
    """Returns a graph's variable after each of its steps, and the final global step."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=tf.constant(START), use_resource=resource)
        goal = v1.placeholder(tf.float64, [3])
        optimizer = hvd.DistributedOptimizer(make_optimizer(), **options)
        value = tf.reduce_sum(tf.square(x - goal))
        step = v1.train.get_or_create_global_step()
        operation = optimizer.minimize(value, global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        found = []
        for turn in range(turns):
            session.run(operation, {goal: target(hvd.rank(), turn)})
            found.append(session.run(x))
        return found, session.run(step)


def descent():
    return v1.train.GradientDescentOptimizer(RATE)


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"groups": 1}, {"gradient_predivide_factor": 2.0}], ids=str
)
def test_a_graphs_steps_are_those_of_the_mean(options, resource):
    found, steps = trained(descent, 4, resource, **options)
    x = START
    for turn in range(4):
        x = x - RATE * mean_gradient(x, turn)
        np.testing.assert_allclose(found[turn], x, rtol=1e-12)
    assert steps == 4


def test_slots_are_those_of_the_optimizer_within():
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=tf.constant(START))
        within = v1.train.MomentumOptimizer(RATE, 0.9)
        optimizer = hvd.DistributedOptimizer(within)
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        optimizer.minimize(tf.reduce_sum(x))
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(x, "momentum") is within.get_slot(x, "momentum")
        assert optimizer.variables() == within.variables()


@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_several_passes_are_added_up(average):
    options = {"backward_passes_per_step": 3, "average_aggregated_gradients": average}
    found, _ = trained(descent, 7, **options)
    x = START
    for first in (0, 3):
        total = sum(mean_gradient(x, turn) for turn in range(first, first + 3))
        np.testing.assert_allclose(found[first], x, rtol=1e-12)
        np.testing.assert_allclose(found[first + 1], x, rtol=1e-12)
        x = x - RATE * total / (3 if average else 1)
        np.testing.assert_allclose(found[first + 2], x, rtol=1e-12)
    np.testing.assert_allclose(found[6], x, rtol=1e-12)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("resource", [True, False])
def test_adasum_combines_what_the_optimizers_have_made(passes, resource):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum takes a power of two of ranks")
    found, _ = trained(
        lambda: v1.train.MomentumOptimizer(RATE, 0.5),
        2 * passes,
        resource,
        op=hvd.Adasum,
        backward_passes_per_step=passes,
    )
    x, momenta = START, np.zeros((hvd.size(), 3))
    for first in (0, passes):
        deltas = []
        for rank in range(hvd.size()):
            own = x
            for turn in range(first, first + passes):
                momenta[rank] = 0.5 * momenta[rank] + gradient(own, rank, turn)
                own = own - RATE * momenta[rank]
                if rank == hvd.rank() and turn < first + passes - 1:
                    np.testing.assert_allclose(found[turn], own, rtol=1e-10)
            deltas.append(own - x)
        x = x + adasum(deltas)
        np.testing.assert_allclose(found[first + passes - 1], x, rtol=1e-10)


def adasum(vectors):
    """Combines neighbours, then their sums, and so on."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [combined(one, other) for one, other in pairs]
    return vectors[0]


def combined(one, other):
    dot = one @ other
    return one * (1 - dot / (2 * one @ one)) + other * (1 - dot / (2 * other @ other))


def test_local_variables_of_a_graph():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=tf.constant(START))
        y = v1.get_variable("y", initializer=tf.constant(START))
        optimizer = hvd.DistributedOptimizer(descent(), op=hvd.Sum)
        optimizer.register_local_var(y)
        pairs = optimizer.compute_gradients(tf.reduce_sum(x + y) * (hvd.rank() + 1.0))
        session.run(v1.global_variables_initializer())
        of_x, of_y = session.run([gradient for gradient, _ in pairs])
    np.testing.assert_allclose(of_x, np.full(3, sum(range(1, hvd.size() + 1))))
    np.testing.assert_allclose(of_y, np.full(3, (hvd.rank() + 1) / hvd.size()))


@pytest.mark.parametrize("passes", [1, 2])
def test_ranks_may_have_different_numbers_of_local_variables_in_a_graph(passes):
    with tf.Graph().as_default(), v1.Session() as session:
        local = [
            v1.get_variable(f"own_{i}", initializer=tf.constant(START))
            for i in range(1 + hvd.rank())
        ]
        x = v1.get_variable("x", initializer=tf.constant(START))
        unused = v1.get_variable("unused", initializer=tf.constant(START))
        y = v1.get_variable("y", initializer=tf.constant(START))
        optimizer = hvd.DistributedOptimizer(descent(), op=hvd.Sum, backward_passes_per_step=passes)
        for each in local:
            optimizer.register_local_var(each)
        own, seen = optimizer._allreduce_grads, []

        def allreduce_grads(grads, variables):
            seen.append([each is None for each in grads])
            return own(grads, variables)

        optimizer._allreduce_grads = allreduce_grads
        value = tf.reduce_sum(tf.add_n([*local, x, y])) * (hvd.rank() + 1.0)
        pairs = optimizer.compute_gradients(value, [*local, x, unused, y])
        assert seen == [[False, True, False]]
        assert (optimizer._agg_helper is None) == (passes == 1)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        wanted = [gradient for gradient, variable in pairs if variable is not unused]
        for turn in range(passes):
            found = session.run(wanted)
            if passes > 1:
                count = session.run(optimizer._agg_helper.counter)
                assert count == (turn + 1) % passes
    for gradient in found[:-2]:
        np.testing.assert_allclose(gradient, np.full(3, passes * (hvd.rank() + 1) / hvd.size()))
    for gradient in found[-2:]:
        np.testing.assert_allclose(gradient, np.full(3, passes * sum(range(1, hvd.size() + 1))))


def test_eager_steps():
    x = tf.Variable(START)
    optimizer = hvd.DistributedOptimizer(descent())
    expected = START
    for turn in range(3):
        goal = tf.constant(target(hvd.rank(), turn))
        optimizer.minimize(lambda goal=goal: tf.reduce_sum(tf.square(x - goal)))
        expected = expected - RATE * mean_gradient(expected, turn)
        np.testing.assert_allclose(x, expected, rtol=1e-12)


@pytest.mark.parametrize("run", [lambda function: function, tf.function])
@pytest.mark.parametrize("average", [False, True])
def test_the_helper_by_itself(run, average):
    helper = hvd.LocalGradientAggregationHelper(
        backward_passes_per_step=2,
        allreduce_func=lambda grads, vars: [
            hvd.allreduce(grad, op=hvd.Sum, name=f"helper_{i}") for i, grad in enumerate(grads)
        ],
        sparse_as_dense=True,
        average_aggregated_gradients=average,
        rank=hvd.rank(),
        optimizer_type=None,
    )
    x, y, unused = (tf.Variable(tf.zeros([4, 2])) for _ in range(3))
    helper.register_local_var(y)
    applied = tf.Variable(0)

    @run
    def step(value):
        slices = tf.IndexedSlices(tf.fill([1, 2], value), tf.constant([1]), tf.constant([4, 2]))
        grads = helper.compute_gradients([slices, tf.fill([4, 2], value), None], [x, y, unused])
        assert grads[2] is None
        helper.apply_gradients(lambda: applied.assign_add(1), None, grads[:2])
        return grads[0], grads[1]

    ranks = hvd.size()
    for turn in range(4):
        of_x, of_y = step(tf.constant(turn + 1.0))
        sums = [1.0, 3.0, 3.0, 7.0][turn]
        is_last = turn % 2 == 1
        divided = 2 if average and is_last else 1
        expected = np.zeros((4, 2))
        expected[1] = sums * (ranks if is_last else 1) / divided
        np.testing.assert_allclose(of_x, expected)
        local = sums / (ranks if is_last else 1) / divided
        np.testing.assert_allclose(of_y, np.full((4, 2), local))
        assert applied.numpy() == (turn + 1) // 2


def test_slices_cannot_be_added_up():
    helper = hvd.LocalGradientAggregationHelper(2, lambda g, v: g, False, False, 0, None)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    with pytest.raises(ValueError, match="IndexedSlices are not supported"):
        helper.compute_gradients([slices], [tf.Variable(tf.zeros([4, 2]))])


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="must be > 0"):
        hvd.DistributedOptimizer(descent(), backward_passes_per_step=0)
    with pytest.raises(ValueError, match="not supported with op != Average"):
        hvd.DistributedOptimizer(descent(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(descent(), op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="groups must"):
        hvd.DistributedOptimizer(descent(), groups=0)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(descent()))
    with pytest.raises(ValueError, match="eager execution"):
        hvd.DistributedOptimizer(descent(), backward_passes_per_step=2)


def test_every_pass_is_a_global_step():
    """As in Horovod: a hook that stops at a step counts passes."""
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=1.0, use_resource=True)
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(descent(), backward_passes_per_step=2)
        operation = optimizer.minimize(x * 1.0, global_step=step)
        with v1.train.MonitoredTrainingSession(
            hooks=[v1.train.StopAtStepHook(num_steps=4)]
        ) as session:
            runs = 0
            while not session.should_stop():
                session.run(operation)
                runs += 1
    assert runs == 4
