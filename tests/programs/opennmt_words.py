"""OpenNMT-tf's Runner, whose Horovod is the drop-in: a transformer that translates made-up words.

    perseusrun --drop-in -np 2 python opennmt_words.py

`onmt-main ... train --horovod` passes the same module to the same Runner.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import opennmt
import outcome
import tensorflow as tf

#: Of all ranks together.
BATCH, STEPS = 48, 60
WORDS, LENGTH, SENTENCES = 12, 6, 4 * BATCH


class Kept(opennmt.models.Transformer):
    """A small transformer, of which the Runner makes one by a call."""

    made: Kept

    def __init__(self) -> None:
        super().__init__(
            opennmt.inputters.WordEmbedder(embedding_size=32),
            opennmt.inputters.WordEmbedder(embedding_size=32),
            num_layers=1,
            num_units=32,
            num_heads=4,
            ffn_inner_dim=64,
            ffn_activation=tf.nn.silu,  # smooth, so that rounding differences stay small
            dropout=0,
            attention_dropout=0,
            ffn_dropout=0,
        )
        Kept.made = self


def write_data(folder: Path) -> dict[str, str]:
    """Writes sentences of equal length, whose words are translated one by one."""
    choose = random.Random(0)
    lines = [[choose.randrange(WORDS) for _ in range(LENGTH)] for _ in range(SENTENCES)]
    paths = {}
    for side in ("source", "target"):
        sentences, words = folder / f"{side}.txt", folder / f"{side}-words.txt"
        shift = 5 if side == "target" else 0
        named = [[f"{side}{(word + shift) % WORDS}" for word in line] for line in lines]
        sentences.write_text("".join(" ".join(line) + "\n" for line in named))
        special = ["<blank>", "<s>", "</s>"]
        words.write_text("\n".join([*special, *(f"{side}{word}" for word in range(WORDS))]) + "\n")
        paths[f"{side}_vocabulary"] = str(words)
        key = "train_features_file" if side == "source" else "train_labels_file"
        paths[key] = str(sentences)
    return paths


def accuracy(model: Kept, data: dict[str, str]) -> float:
    """Returns the share of words that the model gives next, having been told those before."""
    dataset = model.examples_inputter.make_evaluation_dataset(
        data["train_features_file"], data["train_labels_file"], SENTENCES
    )
    source, target = next(iter(dataset))
    outputs, _ = model(source, labels=target)
    given = tf.argmax(outputs["logits"], axis=-1, output_type=target["ids_out"].dtype)
    return float(tf.reduce_mean(tf.cast(tf.equal(given, target["ids_out"]), tf.float32)))


def main() -> None:
    hvd: Any = None
    rank, size = 0, 1
    if "--alone" not in sys.argv:
        import horovod.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
    folder = Path(os.environ["PROGRAM_OUTCOME"]) / f"files-{rank}"
    folder.mkdir()
    data = write_data(folder)
    config = {
        "model_dir": str(folder / "model"),
        "data": data,
        "params": {
            "optimizer": "SGD",
            "optimizer_params": {"momentum": 0.9},
            "learning_rate": 0.1,
            "average_loss_in_time": True,
        },
        "train": {
            "batch_size": BATCH // size,
            "batch_type": "examples",
            "sample_buffer_size": 0,
            "length_bucket_width": 0,
            "max_step": STEPS,
            "save_checkpoints_steps": STEPS,
        },
    }
    opennmt.Runner(Kept, config, seed=1).train(hvd=hvd)
    weights = (variable.numpy() for variable in Kept.made.trainable_variables)
    outcome.keep(rank, weights, "accuracy", accuracy(Kept.made, data))


if __name__ == "__main__":
    main()
