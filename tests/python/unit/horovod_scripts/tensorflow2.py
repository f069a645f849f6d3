"""A training script for horovod.tensorflow, as its users write them; it knows of Horovod only.

With --elastic, rank 1 ends in the middle of it, and the others go on.
"""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError  # noqa: F401

parser = argparse.ArgumentParser()
parser.add_argument("--elastic", action="store_true")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
args = parser.parse_args()

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

BATCH = 24
images = np.random.default_rng(1).normal(size=(240, 8)).astype(np.float32)
labels = (images @ np.arange(8) > 0).astype(np.int64)

tf.keras.utils.set_random_seed(5)
model = tf.keras.Sequential(
    [tf.keras.layers.Input((8,)), tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(2)]
)
cost = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = tf.keras.optimizers.SGD(0.2)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
op = hvd.Adasum if args.use_adasum else hvd.Average
launched = hvd.rank()


@tf.function
def training_step(x, y, first_batch):
    with tf.GradientTape() as tape:
        loss = cost(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=compression, op=op)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss


def train(state):
    while state.epoch < 4:
        order = np.random.default_rng(state.epoch).permutation(len(images))
        while state.batch < len(images) // BATCH:
            if args.elastic and launched == 1 and state.epoch == 2 and state.batch == 3:
                os._exit(1)
            whole = order[state.batch * BATCH : (state.batch + 1) * BATCH]
            own = whole[hvd.rank() :: hvd.size()]
            first = state.epoch == 0 and state.batch == 0
            training_step(tf.constant(images[own]), tf.constant(labels[own]), first)
            state.batch += 1
            state.commit()
        state.epoch, state.batch = state.epoch + 1, 0
        state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {cost(labels, model(images)):.5f}", flush=True)


if args.elastic:
    variables = [*model.variables, *opt.variables]
    hvd.elastic.run(train)(hvd.elastic.TensorFlowState(variables=variables, epoch=0, batch=0))
else:
    state = hvd.elastic.TensorFlowState(variables=model.variables, epoch=0, batch=0)
    train(state)
print(f"of {hvd.size()}", flush=True)
