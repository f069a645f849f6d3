"""MONAI's trainer and evaluator on synthetic images, with DDP over Perseus."""

from __future__ import annotations

import sys

import numpy as np
import outcome
import torch
import torch.distributed as dist
from monai.data import DataLoader, Dataset, create_test_image_2d
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, ValidationHandler, from_engine
from monai.inferers import SimpleInferer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Activationsd, AsDiscreted, Compose
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import perseus.torch  # noqa: F401  it registers the backend

#: Of all ranks together.
BATCH, TRAINED, TESTED, EPOCHS = 12, 48, 12, 5


def images(count: int, seed: int) -> Dataset:
    random = np.random.RandomState(seed)
    pairs = (
        create_test_image_2d(32, 32, num_objs=4, rad_max=8, num_seg_classes=1, random_state=random)
        for _ in range(count)
    )
    rows = [
        {"image": torch.tensor(image)[None].float(), "label": torch.tensor(label)[None].float()}
        for image, label in pairs
    ]
    return Dataset(rows)


def main() -> None:
    alone = "--alone" in sys.argv
    if not alone:
        dist.init_process_group("perseus")
    rank, size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    torch.manual_seed(rank)
    # It is smooth, so that rounding differences stay small.
    whole = UNet(2, 1, 1, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, act="swish")
    model = whole if alone else DistributedDataParallel(whole)

    def loader(dataset: Dataset, batch: int) -> DataLoader:
        sampler = DistributedSampler(dataset, size, rank, shuffle=False)
        return DataLoader(dataset, batch_size=batch // size, sampler=sampler)

    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=loader(images(TESTED, 1), TESTED),
        network=model,
        inferer=SimpleInferer(),
        postprocessing=Compose(
            [Activationsd(keys="pred", sigmoid=True), AsDiscreted(keys="pred", threshold=0.5)]
        ),
        # It gathers the values of all ranks.
        key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    )
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=EPOCHS,
        train_data_loader=loader(images(TRAINED, 0), BATCH),
        network=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2, eps=1e-4),
        loss_function=DiceLoss(sigmoid=True),
        inferer=SimpleInferer(),
        train_handlers=[ValidationHandler(1, evaluator)],
    )
    trainer.run()
    parameters = (parameter.detach() for parameter in whole.parameters())
    outcome.keep(rank, parameters, "Dice", evaluator.state.metrics["dice"])
    if not alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
