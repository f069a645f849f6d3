"""HuggingFace's Trainer, which trains a small vision transformer on Perseus.

Its process group is made before its TrainingArguments, which would otherwise make one with Gloo.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import outcome
import torch
import torch.distributed as dist
import torch_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import perseus.torch  # noqa: F401  it registers the backend


def make_model(rank: int) -> ViTForImageClassification:
    torch.manual_seed(rank)
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            num_labels=10,
            initializer_range=0.2,
            # A key's bias has a gradient of rounding errors alone, which Adam makes as large as
            # any other.
            qkv_bias=False,
        )
    )


def rows(dataset: torch.utils.data.TensorDataset) -> list[dict[str, torch.Tensor]]:
    return [{"pixel_values": image, "labels": label} for image, label in dataset]


def accuracy(prediction: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(axis=1) == labels).mean())}


def main() -> None:
    rank, size = 0, 1
    if "--alone" not in sys.argv:
        dist.init_process_group("perseus")
        rank, size = dist.get_rank(), dist.get_world_size()
    trained, tested = torch_digits.data()
    trainer = Trainer(
        make_model(rank),
        TrainingArguments(
            os.environ["PROGRAM_OUTCOME"],
            use_cpu=True,
            per_device_train_batch_size=torch_digits.BATCH // size,
            num_train_epochs=6,
            learning_rate=3e-3,
            adam_epsilon=1e-4,
            save_strategy="no",
            logging_strategy="epoch",
            disable_tqdm=True,
            report_to=[],
        ),
        train_dataset=rows(trained),
        eval_dataset=rows(tested),
        compute_metrics=accuracy,
    )
    trainer.train()
    found = trainer.evaluate()["eval_accuracy"]
    parameters = (
        each.detach() for each in trainer.accelerator.unwrap_model(trainer.model).parameters()
    )
    outcome.keep(rank, parameters, "accuracy", found)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
