"""Tapes whose gradients are those of all ranks, against tapes of all ranks' batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import perseus.tensorflow.horovod as hvd


def eagerly(function):
    return function


def model():
    """The same on all ranks."""
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(5, activation="tanh"), tf.keras.layers.Dense(3)]
    built = tf.keras.Sequential([tf.keras.layers.Input((4,)), *layers])
    return built


def batch(rank, rows=6):
    return tf.constant(np.random.default_rng(rank).normal(size=(rows, 4)).astype(np.float32))


def loss(net, x):
    return tf.reduce_sum(tf.square(net(x)))


def gradients_of_ranks(net):
    found = []
    for rank in range(hvd.size()):
        with tf.GradientTape() as tape:
            value = loss(net, batch(rank))
        found.append([each.numpy() for each in tape.gradient(value, net.trainable_variables)])
    return [np.stack(each).astype(np.float64) for each in zip(*found, strict=True)]


def tape_gradients(net, run=eagerly, **options):
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(net, x)
        tape = hvd.DistributedGradientTape(tape, **options)
        return tape.gradient(value, net.trainable_variables)

    return run(step)(batch(hvd.rank()))


def assert_all_close(ours, expected, tolerance=1e-5):
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": 100},
        {"gradient_predivide_factor": 2.0},
        {"sparse_as_dense": True},
        {"compression": hvd.Compression.fp16},
    ],
    ids=str,
)
def test_gradients_are_the_average(run, options):
    net = model()
    expected = [each.mean(axis=0) for each in gradients_of_ranks(net)]
    tolerance = 4e-3 if "compression" in options else 1e-5
    assert_all_close(tape_gradients(net, run, **options), expected, tolerance)


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize(
    ("op", "reduce"), [(hvd.Sum, np.sum), (hvd.Max, np.max), (hvd.Min, np.min)]
)
def test_other_reductions(run, op, reduce):
    net = model()
    expected = [reduce(each, axis=0) for each in gradients_of_ranks(net)]
    assert_all_close(tape_gradients(net, run, op=op), expected)


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_groups_of_variables(run):
    net = model()
    expected = [each.mean(axis=0) for each in gradients_of_ranks(net)]
    kernels = [net.trainable_variables[0], net.trainable_variables[2]]
    assert_all_close(tape_gradients(net, run, groups=[kernels]), expected)


def test_a_group_may_be_of_several_types():
    single, double = tf.Variable([1.0, 2.0]), tf.Variable(np.array([3.0, 4.0]))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(single) * 2.0 + tf.cast(tf.reduce_sum(double) * 3.0, tf.float32)
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, groups=1)
    of_single, of_double = tape.gradient(value, [single, double])
    assert of_single.dtype == tf.float32 and of_double.dtype == tf.float64
    np.testing.assert_array_equal(of_single, np.full(2, 2.0 * hvd.size()))
    np.testing.assert_array_equal(of_double, np.full(2, 3.0 * hvd.size()))


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize(
    "options",
    [{}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}],
    ids=str,
)
def test_indexed_slices(run, options):
    table = tf.Variable(np.ones((10, 3), np.float32))

    def step(rows):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(table, rows) * 2.0)
        tape = hvd.DistributedGradientTape(tape, **options)
        return tape.gradient(value, table)

    # As many rows as the rank's number says, one at least.
    rows = [hvd.rank(), *range(hvd.rank())]
    gradient = run(step)(tf.constant(rows))
    assert isinstance(gradient, tf.IndexedSlices) is not ("sparse_as_dense" in options)
    expected = np.zeros((10, 3))
    for rank in range(hvd.size()):
        for row in [rank, *range(rank)]:
            expected[row] += 2.0 / hvd.size()
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, rtol=1e-6)


def test_sources_keep_their_structure():
    x, y, unused = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        value = x * y
    found = tape.gradient(value, {"x": x, "rest": [y, unused]})
    assert float(found["x"]) == 2.0
    assert float(found["rest"][0]) == 1.0
    assert found["rest"][1] is None
    assert float(tape.gradient(value, x)) == 2.0
    assert tape.watched_variables() == (x, y)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_tape_is_wrapped_at_any_time(when, persistent):
    expected = np.array([2.0, 4.0]) * (hvd.size() + 1) / 2
    x = tf.Variable([1.0, 2.0])
    for _ in range(5):
        tape = tf.GradientTape(persistent=persistent)
        if when == "before":
            tape = hvd.DistributedGradientTape(tape)
        with tape:
            value = tf.reduce_sum(x * x) * (hvd.rank() + 1.0)
            if when == "within":
                tape = hvd.DistributedGradientTape(tape)
        if when == "after":
            tape = hvd.DistributedGradientTape(tape)
        np.testing.assert_allclose(tape.gradient(value, x), expected)


def test_a_tape_gives_gradients_where_it_still_records():
    x = tf.Variable([1.0, 2.0])
    for _ in range(5):
        with tf.GradientTape() as recording:
            value = tf.reduce_sum(x * x) * (hvd.rank() + 1.0)
            gradient = hvd.DistributedGradientTape(recording).gradient(value, x)
        np.testing.assert_allclose(gradient, np.array([2.0, 4.0]) * (hvd.size() + 1) / 2)


def test_gradients_that_only_some_ranks_name_alike(two_ranks):
    variable = tf.Variable(2.0, name=f"of_rank_{hvd.rank()}")

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            value = variable * (hvd.rank() + 1.0)
        return tape.gradient(value, [variable], use_generic_names=True)

    assert float(step()[0]) == sum(range(1, hvd.size() + 1))


@pytest.mark.parametrize("scale", [False, True])
def test_local_layers(scale):
    net = model()
    own = [each[hvd.rank()] for each in gradients_of_ranks(net)]
    expected = [each.mean(axis=0) for each in gradients_of_ranks(net)]
    factor = 1 / hvd.size() if scale else 1.0
    with tf.GradientTape() as tape:
        value = loss(net, batch(hvd.rank()))
    tape = hvd.PartialDistributedGradientTape(
        tape, local_layers=net.layers[0], scale_local_gradients=scale
    )
    found = tape.gradient(value, net.trainable_variables)
    assert_all_close(found[:2], [each * factor for each in own[:2]])
    assert_all_close(found[2:], expected[2:])


def test_local_and_global_gradients_apart():
    x, y, z = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        value = x * (hvd.rank() + 1.0) + y * 3.0
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, scale_local_gradients=False)
    tape.register_local_source(x)
    local, reduced = tape.get_local_and_global_gradients(value, [x, y, z])
    ((of_x, gradient),) = local
    assert of_x is x and float(gradient) == hvd.rank() + 1.0
    (of_y, gradient), (of_z, none) = reduced
    assert of_y is y and float(gradient) == 3.0 * hvd.size()
    assert of_z is z and none is None


def hybrid_sources(shared=3):
    """Returns one local variable on rank 0, one more on each further rank, and shared ones."""
    local = [tf.Variable([1.0], name=f"own_{i}") for i in range(1 + hvd.rank())]
    return local, [tf.Variable([2.0, 3.0], name=f"w{i}") for i in range(shared)]


def hybrid_loss(sources):
    return (hvd.rank() + 1.0) * tf.add_n([tf.reduce_sum(each * each) / 2.0 for each in sources])


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": "lists"},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"scale_local_gradients": False},
    ],
    ids=str,
)
def test_ranks_may_have_different_numbers_of_local_sources(run, generic, options):
    local, shared = hybrid_sources()
    if options.get("groups") == "lists":
        options = {"groups": [[shared[2], local[0]], shared[:2]]}

    def step():
        with tf.GradientTape() as tape:
            value = hybrid_loss([*local, *shared])
        tape = hvd.DistributedGradientTape(tape, **options)
        for each in local:
            tape.register_local_source(each)
        return tape.gradient(value, [*local, *shared], use_generic_names=generic)

    gradients = run(step)()
    scale = 1 if options.get("scale_local_gradients") is False else hvd.size()
    for gradient in gradients[: len(local)]:
        np.testing.assert_allclose(gradient, [(hvd.rank() + 1) / scale])
    for gradient in gradients[len(local) :]:
        np.testing.assert_allclose(gradient, np.array([2.0, 3.0]) * (hvd.size() + 1) / 2)


def test_a_large_local_table_stays_sparse_when_others_are_made_dense():
    local, shared = tf.Variable(tf.ones([10, 3])), tf.Variable(tf.ones([10, 3]))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.gather(local, [1]) + tf.gather(shared, [1]))
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
    tape.register_local_source(local)
    of_local, of_shared = tape.gradient(value, [local, shared])
    assert isinstance(of_local, tf.IndexedSlices)
    assert not isinstance(of_shared, tf.IndexedSlices)


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_local_sources_among_the_ranks_of_a_set(run, two_ranks):
    all_but_last = hvd.add_process_set(range(hvd.size() - 1))
    try:
        local, shared = hybrid_sources()

        @run
        def step():
            with tf.GradientTape() as tape:
                # Graphs of ranks differ in their numbers of conditions, too.
                own = [tf.cond(each[0] > 0.0, lambda: each, lambda: -each) for each in local]  # noqa: B023
                value = hybrid_loss([*own, *shared])
            tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, process_set=all_but_last)
            for each in local:
                tape.register_local_source(each)
            return tape.gradient(value, [*local, *shared])

        gradient = step()[-1]
        members = [hvd.rank()] if hvd.rank() == hvd.size() - 1 else range(hvd.size() - 1)
        np.testing.assert_allclose(gradient, np.array([2.0, 3.0]) * sum(i + 1 for i in members))
    finally:
        hvd.remove_process_set(all_but_last)


def test_a_set_with_the_number_of_another_is_refused(two_ranks):
    registered = hvd.add_process_set([0])
    try:
        x = tf.Variable(1.0)
        for number in (registered.process_set_id, 0, 99):
            fake = hvd.ProcessSet([0, 5])
            fake.process_set_id = number
            refused = pytest.raises(ValueError, match="is not registered, and its number is that")
            with refused:
                hvd.allreduce(tf.ones(2), process_set=fake)
            with hvd.DistributedGradientTape(tf.GradientTape(), process_set=fake) as tape:
                value = x * x
            with refused:
                tape.gradient(value, [x])
    finally:
        hvd.remove_process_set(registered)


def test_gradients_are_counted_among_the_sources_that_are_not_local(two_ranks):
    """Also those without a gradient, so that a rank never takes one for another."""
    local, unused, x = tf.Variable([1.0]), tf.Variable(1.0), tf.Variable(tf.ones(2 + hvd.rank()))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(x) + tf.reduce_sum(local)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(local)
    with pytest.raises(tf.errors.FailedPreconditionError, match="HorovodAllreduce_grad_1'"):
        tape.gradient(value, [local, unused, x], use_generic_names=True)


@pytest.mark.parametrize("several", [False, True])
def test_generic_names_do_not_depend_on_scopes(several, two_ranks):
    x = [tf.Variable([1.0]), tf.Variable([2.0])]

    @tf.function
    def step():
        found = []
        with tf.name_scope(f"of_rank_{hvd.rank()}"):
            for _ in range(2 if several else 1):
                with tf.GradientTape() as tape:
                    value = tf.add_n(x) * (hvd.rank() + 1.0)
                tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
                found += tape.gradient(value, x, use_generic_names=True)
        return found

    for gradient in step():
        np.testing.assert_allclose(gradient, [sum(range(1, hvd.size() + 1))])


def test_what_a_program_puts_in_place_of_the_reduction_has_its_effect():
    x, y = tf.Variable([1.0]), tf.Variable([2.0])
    with tf.GradientTape() as tape:
        value = (x + y) * (hvd.rank() + 1.0)
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    tape.register_local_source(x)
    own, seen = tape._allreduce_grads, []

    def allreduce_grads(grads, sources, use_generic_names):
        seen.append((len(grads), sources[0] is y, use_generic_names))
        return [each * 2.0 for each in own(grads, sources, use_generic_names=True)]

    tape._allreduce_grads = allreduce_grads
    of_y = tape.gradient(value, [x, y])[1]
    assert seen == [(1, True, False)]
    np.testing.assert_allclose(of_y, [2.0 * sum(range(1, hvd.size() + 1))])


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_ranks_outside_of_the_set_keep_their_own(run, two_ranks):
    all_but_last = hvd.add_process_set(range(hvd.size() - 1))
    try:
        x, table = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([10, 3]))

        @run
        def step(rows):
            scale = hvd.rank() + 1.0
            with hvd.DistributedGradientTape(tf.GradientTape(), process_set=all_but_last) as tape:
                value = tf.reduce_sum(x) * scale + tf.reduce_sum(tf.gather(table, rows)) * scale
            return tape.gradient(value, [x, table])

        of_x, slices = step(tf.constant([hvd.rank()]))
        is_last = hvd.rank() == hvd.size() - 1
        members = [hvd.rank()] if is_last else list(range(hvd.size() - 1))
        scales = np.array(members) + 1.0
        np.testing.assert_allclose(of_x, np.full(2, scales.mean()))
        np.testing.assert_array_equal(slices.indices, members)
        np.testing.assert_allclose(slices.values[:, 0], scales / len(members))
    finally:
        hvd.remove_process_set(all_but_last)


def test_adasum_of_equal_and_of_orthogonal_gradients():
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum takes a power of two of ranks")
    own = np.zeros(hvd.size(), np.float32)
    own[hvd.rank()] = 1.0
    x = tf.Variable(np.ones(hvd.size(), np.float32))

    def gradient(weights):
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
            value = tf.reduce_sum(x * weights)
        return tape.gradient(value, x)

    np.testing.assert_allclose(gradient(own), np.ones(hvd.size()), rtol=1e-6)
    np.testing.assert_allclose(
        gradient(np.ones(hvd.size(), np.float32)), np.ones(hvd.size()), rtol=1e-6
    )


def test_what_contradicts_itself_is_refused():
    x = tf.Variable(1.0)
    with pytest.raises(ValueError, match="not supported with op != Average"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    for groups in (0, -1, "all", [x], [[x], [x]], [[1]]):
        with pytest.raises(ValueError, match="groups must"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
    with pytest.raises(ValueError, match="is not a reduction"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=17)
    with pytest.raises(TypeError, match="it takes a tf"):
        hvd.DistributedGradientTape(x)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    with pytest.raises(ValueError, match="All local layers must be"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[x])
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)


def test_shapes_that_differ_are_an_error_on_all_ranks(two_ranks):
    x = tf.Variable(np.ones(3 + (hvd.rank() == 0), np.float32))
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        value = tf.reduce_sum(x)
    with pytest.raises(tf.errors.FailedPreconditionError, match="grad_0"):
        tape.gradient(value, x)


def test_training_with_a_tape_is_training_on_all_batches():
    ours, single = model(), model()
    for net, batches in ((ours, [hvd.rank()]), (single, range(hvd.size()))):
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)

        @tf.function
        def step(x, net=net, optimizer=optimizer):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(tf.square(net(x)))
            if net is ours:
                tape = hvd.DistributedGradientTape(tape)
            pairs = zip(
                tape.gradient(value, net.trainable_variables), net.trainable_variables, strict=True
            )
            optimizer.apply_gradients(pairs)

        for turn in range(10):
            step(tf.concat([batch(100 * turn + rank) for rank in batches], 0))
    for one, other in zip(ours.variables, single.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


def reduced(gradients, **options):
    """Returns these gradients after a tape has reduced them in one graph."""
    variables = [tf.Variable(each, name=f"v{i}") for i, each in enumerate(gradients)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            losses = [
                tf.cast(tf.reduce_sum(variable * variable / 2.0), tf.float64)
                for variable in variables
            ]
            value = tf.add_n(losses)
        return hvd.DistributedGradientTape(tape, **options).gradient(value, variables)

    return step, variables


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_small_gradients_handed_over_together_are_each_the_average(compression):
    rng = np.random.default_rng(7)
    shapes = [(3,), (5, 2), (200, 100), (), (1, 7), *[(i + 1,) for i in range(40)]]
    kinds = [np.float64 if i % 5 == 0 else np.float32 for i in range(len(shapes))]
    of_ranks = [
        [
            np.asarray(rng.normal(size=shape), kind)
            for shape, kind in zip(shapes, kinds, strict=True)
        ]
        for _ in range(hvd.size())
    ]
    step, _ = reduced(of_ranks[hvd.rank()], compression=compression)
    expected = [
        np.mean(np.stack(each).astype(np.float64), 0) for each in zip(*of_ranks, strict=True)
    ]
    tolerance = 4e-3 if compression is hvd.Compression.fp16 else 1e-6
    assert_all_close(step(), expected, tolerance)
    types = [node.type for node in step.get_concrete_function().graph.get_operations()]
    if compression is hvd.Compression.none:
        # 35 small ones of float32 and 9 of float64 in runs of at most 16, one large one by itself.
        assert types.count("PerseusAllreduceEach") == 4
        assert types.count("HorovodAllreduce") == 1
    assert len([each for each in types if each.startswith("Horovod")]) <= 1


def test_of_small_gradients_handed_over_together_the_one_that_differs_is_named(two_ranks):
    shapes = [(2,), (3,), (4 + hvd.rank(),), (5,)]
    step, _ = reduced([np.ones(shape, np.float32) for shape in shapes])
    with pytest.raises(tf.errors.FailedPreconditionError, match="HorovodAllreduce_grad_2_v2"):
        step()


def test_gradients_of_gradients_that_were_handed_over_together():
    x = [tf.Variable([1.0 + hvd.rank(), 2.0]), tf.Variable([3.0])]

    @tf.function
    def step():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(x[0] ** 3) + tf.reduce_sum(x[1] ** 2)
            first = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(value, x)
            total = tf.add_n([tf.reduce_sum(each) for each in first])
        return outer.gradient(total, x)

    of_x, of_y = step()
    # The sum over ranks of d(sum of 3 x^2)/dx = 6 x, and of 2.
    expected = 6.0 * hvd.size() * np.array([1.0 + hvd.rank(), 2.0])
    np.testing.assert_allclose(of_x, expected)
    np.testing.assert_allclose(of_y, [2.0 * hvd.size()])


def test_small_gradients_in_a_loop_that_differ_are_an_error_on_all_ranks(two_ranks):
    """There operations take turns, whose order must not come from what may differ."""
    shapes = [(300, 200) if i % 4 == 0 else (3,) for i in range(12)]
    shapes[2] = (20000,) if hvd.rank() == 1 else (3,)
    variables = [
        tf.Variable(np.ones(shape, np.float32), name=f"w{i}") for i, shape in enumerate(shapes)
    ]

    @tf.function
    def loop():
        total = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                value = tf.add_n([tf.reduce_sum(each) for each in variables])
            gradients = hvd.DistributedGradientTape(tape).gradient(value, variables)
            total += tf.add_n([tf.reduce_sum(each) for each in gradients])
        return total

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"grad_2_w2.*float32\[20000\]"):
        loop()


def test_gradients_of_gradients_where_functions_run_eagerly():
    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    tf.config.run_functions_eagerly(True)
    try:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                value = tf.add_n([tf.reduce_sum(each**3) for each in variables])
            first = hvd.DistributedGradientTape(tape).gradient(value, variables)
            total = tf.add_n(first)
        second = outer.gradient(total, variables)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(np.ravel(second), [6.0, 12.0])
