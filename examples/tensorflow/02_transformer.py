"""A transformer shaped like BERT, whose embeddings have sparse gradients.

    perseusrun -np 3 python examples/tensorflow/02_transformer.py

A word that is not in a batch has no gradient: TensorFlow returns IndexedSlices, the rows of the
words that are, and Perseus gathers the ranks' rows. The task is to fill in hidden words of made-up
sentences. In float64 each step equals one process's step on all batches; ends with an error if it
does not.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import perseus.tensorflow.horovod as hvd

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 1000, 16, 32, 4, 2
HIDDEN_WORD = 0
STEPS, BATCH, LEARNING_RATE = 20, 8, 0.5


class Block(tf.keras.layers.Layer):
    """Attention and two dense layers, each with a residual connection and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = tf.keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.wide = tf.keras.layers.Dense(4 * WIDTH, activation="gelu")
        self.narrow = tf.keras.layers.Dense(WIDTH)
        self.norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.narrow(self.wide(x)))


class Transformer(tf.keras.Model):
    """From (N, LENGTH) words to (N, LENGTH, WORDS) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = tf.keras.layers.Embedding(WORDS, WIDTH)
        self.places = tf.keras.layers.Embedding(LENGTH, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.says = tf.keras.layers.Dense(WORDS)

    def call(self, sentences: tf.Tensor) -> tf.Tensor:
        x = self.words(sentences) + self.places(tf.range(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.says(x)


def sentences(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Each word is the previous one plus the sentence's stride; a word in six is hidden."""
    generator = np.random.default_rng([step, rank])
    first, stride = generator.integers(1, 50, (2, BATCH, 1))
    whole = 1 + (first + stride * np.arange(LENGTH)) % (WORDS - 1)
    shown = np.where(generator.random(whole.shape) < 1 / 6, HIDDEN_WORD, whole)
    return shown, whole


def main() -> None:
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one process a core
    tf.keras.backend.set_floatx("float64")
    shared, single = Transformer(), Transformer()
    for model in (shared, single):
        model(sentences(0, 0)[0])
    hvd.broadcast_variables(shared.variables, root_rank=0)
    single.set_weights(shared.get_weights())

    for step in range(STEPS):
        batches = [sentences(step, rank) for rank in range(hvd.size())]
        tape = hvd.DistributedGradientTape(tf.GradientTape())
        loss, rows = train(shared, tape, *batches[hvd.rank()])
        train(single, tf.GradientTape(), *map(np.concatenate, zip(*batches, strict=True)))
        if rows.values.shape[0] != hvd.size() * BATCH * LENGTH:
            sys.exit("the rows of some ranks are missing")
        mean = hvd.allreduce(loss, name="loss")
        if hvd.rank() == 0 and step in (0, STEPS - 1):
            print(f"step {step + 1}: loss {mean:.3f}, {rows.values.shape[0]} rows of {WORDS}")

    pairs = zip(shared.trainable_variables, single.trainable_variables, strict=True)
    furthest = max(float(tf.reduce_max(tf.abs(one - other))) for one, other in pairs)
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes: parameters differ by {furthest:.0e} from one process's")
    if furthest > 1e-10:
        sys.exit("the ranks together do not train as one process does")


def train(
    model: Transformer, tape: tf.GradientTape, shown: np.ndarray, whole: np.ndarray
) -> tuple[tf.Tensor, tf.IndexedSlices]:
    """Takes a step of gradient descent; returns the loss, and the gradient of the word table."""
    cost = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tape:
        loss = cost(whole, model(shown))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    (rows,) = (
        gradient
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True)
        if variable is model.words.trainable_variables[0]
    )
    return loss, rows


if __name__ == "__main__":
    main()
