"""Lightning's Trainer, with Perseus as the backend of its DDP.

torchrun --nproc-per-node 2 lightning_digits.py --ranks 2
python lightning_digits.py --ranks 2     # Lightning starts the other rank itself
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch_digits
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import perseus.torch  # noqa: F401  it registers the backend

EPOCHS = 10


class Digits(lightning.LightningModule):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.model = torch_digits.make_model(rank)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.model(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="without a process group")
    args = parser.parse_args()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.ranks,
        strategy="auto" if args.alone else DDPStrategy(process_group_backend="perseus"),
        max_epochs=EPOCHS,
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trained, tested = torch_digits.data()
    model = Digits(trainer.global_rank)
    # Lightning puts a DistributedSampler into the loader. One process needs it for the same order.
    sampler = DistributedSampler(trained, 1, 0) if args.alone else None
    loader = DataLoader(trained, torch_digits.BATCH // args.ranks, sampler=sampler)
    trainer.fit(model, loader, DataLoader(tested, len(tested.tensors[1]) // args.ranks))
    logged, whole = float(trainer.callback_metrics["accuracy"]), torch_digits.accuracy(model.model)
    if abs(logged - whole) > 1e-6:
        raise SystemExit(f"the ranks together are right in {logged}, and one of them in {whole}")
    torch_digits.keep(trainer.global_rank, model.model)


if __name__ == "__main__":
    main()
