"""Variables and objects, made the same on all ranks; batch normalisation; elastic state."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import perseus.tensorflow.horovod as hvd

v1 = tf.compat.v1
TYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64", "bool"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def eagerly(function):
    return function


def values_of(rank):
    """Returns one value of each type, for a rank; their shapes differ."""
    return [
        tf.cast(tf.constant(np.full(shape, rank + 1)), dtype)
        for shape, dtype in zip([(), (3,), (2, 2), (0,)] * 4, [*TYPES, *FLOATS], strict=False)
    ]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_broadcast_of_variables_of_every_type(run, inplace):
    for root in range(hvd.size()):
        variables = [tf.Variable(value) for value in values_of(hvd.rank())]

        @run
        def broadcast(variables=variables, root=root):
            hvd.broadcast_variables(variables, root_rank=root, inplace=inplace)

        broadcast()
        for variable, expected in zip(variables, values_of(root), strict=True):
            assert variable.dtype == expected.dtype
            assert np.array_equal(variable.numpy(), expected.numpy())


def test_broadcast_of_nothing():
    assert hvd.broadcast_variables([], root_rank=0) is None
    assert hvd.broadcast_([], root_rank=0) == []


def test_broadcast_in_place():
    variables = [tf.Variable([hvd.rank() + 1.0]), tf.Variable([[hvd.rank()]])]
    results = hvd.broadcast_(variables, root_rank=hvd.size() - 1, name="both")
    for found in (results, variables):
        assert found[0].numpy() == hvd.size()
        assert found[1].numpy() == hvd.size() - 1
    with pytest.raises(ValueError, match="broadcast takes tensors"):
        hvd.broadcast_([tf.constant(1.0)], root_rank=0)


def test_broadcast_of_a_keras_model():
    net = tf.keras.Sequential(
        [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.Dropout(0.5)]
    )
    net.set_weights([np.full(each.shape, hvd.rank() + 1.0) for each in net.get_weights()])
    hvd.broadcast_variables(net.variables, root_rank=0)
    for weight in net.get_weights():
        np.testing.assert_array_equal(weight, np.ones(weight.shape))


def test_strings_are_refused():
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        hvd.broadcast_variables([tf.Variable("text")], root_rank=0)


@pytest.mark.parametrize("resource", [True, False])
def test_global_variables_of_a_graph(resource):
    with tf.Graph().as_default(), v1.Session() as session:
        value = np.full((2, 3), hvd.rank(), np.float32)
        x = v1.get_variable("x", initializer=value, use_resource=resource)
        y = v1.get_variable("y", initializer=hvd.rank(), use_resource=resource)
        operation = hvd.broadcast_global_variables(hvd.size() - 1)
        session.run(v1.global_variables_initializer())
        session.run(operation)
        found = session.run([x, y])
    np.testing.assert_array_equal(found[0], np.full((2, 3), hvd.size() - 1))
    assert found[1] == hvd.size() - 1


def test_global_variables_need_a_graph():
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def test_the_hook_of_a_monitored_session():
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=float(hvd.rank()))
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        operation = optimizer.minimize(x * (hvd.rank() + 1.0), global_step=step)
        hook = hvd.BroadcastGlobalVariablesHook(hvd.size() - 1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(x) == hvd.size() - 1
            session.run(operation)
            mean = (hvd.size() + 1) / 2
            np.testing.assert_allclose(session.run(x), hvd.size() - 1 - mean)


@pytest.mark.parametrize("name", [None, "thing"])
def test_objects(name):
    own = {"rank": hvd.rank(), "text": "x" * (1000 * hvd.rank()), "array": np.arange(hvd.rank())}
    for root in range(hvd.size()):
        found = hvd.broadcast_object(own, root_rank=root, name=name)
        assert found["rank"] == root and len(found["text"]) == 1000 * root
        np.testing.assert_array_equal(found["array"], np.arange(root))
    assert hvd.broadcast_object_fn(root_rank=hvd.size() - 1)(hvd.rank()) == hvd.size() - 1
    everyone = hvd.allgather_object(own, name=name)
    assert [each["rank"] for each in everyone] == list(range(hvd.size()))
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(hvd.rank(), 0, session=session) == 0


def inputs(rank, shape):
    return np.random.default_rng(rank).normal(3.0, 2.0, size=shape).astype(np.float32)


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("shape", [(4,), (3, 3, 4)], ids=str)
def test_batch_normalisation_over_all_ranks(shape, run):
    """Against one layer that gets all batches; the ranks' batches differ in size."""
    batches = [inputs(rank, (rank + 2, *shape)) for rank in range(hvd.size())]
    first = sum(len(each) for each in batches[: hvd.rank()])
    own = slice(first, first + len(batches[hvd.rank()]))
    weights = np.random.default_rng(99).normal(size=(len(np.concatenate(batches)), *shape))
    weights = weights.astype(np.float32)

    def outcome(layer, x, weight):
        x = tf.constant(x)

        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                value = tf.reduce_sum(y * weight)
            gradients = tape.gradient(value, [x, layer.gamma, layer.beta])
            return [y, *gradients]

        layer.build(x.shape)
        found = run(step)()
        return found, layer.moving_mean, layer.moving_variance

    sync, sync_mean, sync_variance = outcome(
        hvd.SyncBatchNormalization(), batches[hvd.rank()], weights[own]
    )
    single = tf.keras.layers.BatchNormalization()
    whole, mean, variance = outcome(single, np.concatenate(batches), weights)
    np.testing.assert_allclose(sync[0], whole[0][own], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sync[1], whole[1][own], rtol=1e-3, atol=1e-4)
    for i in (2, 3):
        total = hvd.allreduce(sync[i], op=hvd.Sum, name=f"sum_{i}")
        np.testing.assert_allclose(total, whole[i], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sync_mean, mean, rtol=1e-5)
    # The fused layer of Keras 2 keeps the unbiased variance.
    tolerance = 0.02 if getattr(single, "fused", False) else 1e-5
    np.testing.assert_allclose(sync_variance, variance, rtol=tolerance)


def test_batch_normalisation_when_not_training():
    layer = hvd.SyncBatchNormalization()
    layer.build((None, 4))
    x = inputs(hvd.rank(), (3, 4))
    np.testing.assert_allclose(layer(x, training=False), x / np.sqrt(1 + layer.epsilon), rtol=1e-5)
    for fused in (True, None):
        with pytest.raises(ValueError, match="does not support fused=True"):
            hvd.SyncBatchNormalization(fused=fused)
    assert layer.name.startswith("sync_batch_normalization")


@pytest.mark.parametrize("function", [hvd.broadcast_variables, hvd.broadcast_])
def test_only_variables_are_assigned(function):
    for wrong in ([tf.constant(1.0)], {"kernel": tf.Variable(1.0)}, [1.0]):
        with pytest.raises(ValueError, match="takes variables, not"):
            function(wrong, 0)


def test_state_of_variables():
    x = tf.Variable([1.0 + hvd.rank()])
    state = hvd.elastic.TensorFlowState([x], batch=hvd.rank(), epoch=0)
    state.sync()
    assert x.numpy() == 1.0 and state.batch == 0
    x.assign([5.0])
    state.batch = 7
    state.commit()
    x.assign([6.0])
    state.batch = 8
    for _ in range(2):
        state.restore()
        assert x.numpy() == 5.0 and state.batch == 7
        x.assign_add([1.0])  # in its own memory, which must not be that of the saved value


def test_state_with_a_sampler():
    sampler = hvd.elastic.ElasticSampler(range(10 * hvd.size()))
    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], sampler=sampler)
    sampler.record_batch(0, 3)
    state.commit()
    sampler.record_batch(0, 3)
    state.restore()
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(sampler), output_signature=tf.TensorSpec((), tf.int64)
    )
    assert len(list(dataset)) == 7


def test_state_of_a_session():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=float(hvd.rank()))
        session.run(v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, epoch=hvd.rank())
        state.sync()
        assert session.run(x) == 0.0 and state.epoch == 0
        session.run(x.assign(3.0))
        state.save()
        session.run(x.assign(4.0))
        tf.compat.v1.get_default_graph().finalize()
        for _ in range(2):
            state.restore()
            assert session.run(x) == 3.0
            state.save()
        state.sync()
        assert session.run(x) == 3.0


def test_what_is_not_ours_goes_through_elastic_run():
    @hvd.elastic.run
    def train(state, error):
        raise error

    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])
    for error in (tf.errors.UnknownError(None, None, "a disk is full"), KeyError("x")):
        with pytest.raises(type(error)):
            train(state, error)
