"""PyTorch-Ignite, through its backend for Horovod or in a process group of Perseus's.

    perseusrun --drop-in -np 2 python ignite_digits.py --backend horovod
    torchrun --nproc-per-node 2 ignite_digits.py --backend perseus

Ignite wraps a model in DDP for the backends that it names, and "perseus" is none of them. So the
second way wraps the model itself.
"""

from __future__ import annotations

import argparse

import ignite.distributed as idist
import torch
import torch.distributed as dist
import torch_digits
from ignite.engine import Engine, create_supervised_evaluator
from ignite.metrics import Accuracy
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 10


def train(backend: str | None) -> None:
    rank, size = idist.get_rank(), idist.get_world_size()
    trained, tested = torch_digits.data()
    loader = idist.auto_dataloader(trained, batch_size=torch_digits.BATCH, shuffle=False)
    test_loader = idist.auto_dataloader(tested, batch_size=len(tested), shuffle=False)
    whole = torch_digits.make_model(rank)
    model = DistributedDataParallel(whole) if backend == "perseus" else idist.auto_model(whole)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def step(_: Engine, batch: list[torch.Tensor]) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    Engine(step).run(loader, max_epochs=EPOCHS)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
    gathered = evaluator.run(test_loader).metrics["accuracy"]
    if abs(gathered - torch_digits.accuracy(whole)) > 1e-6:
        raise SystemExit(f"rank {rank} of {size}: the ranks together are right in {gathered}")
    torch_digits.keep(rank, whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("horovod", "perseus"), required=True)
    parser.add_argument("--alone", action="store_true", help="without other ranks")
    args = parser.parse_args()
    if args.alone:
        train(None)
    elif args.backend == "perseus":
        import perseus.torch  # noqa: F401  it registers the backend

        dist.init_process_group("perseus")
        train(args.backend)
        dist.destroy_process_group()
    else:
        with idist.Parallel(backend="horovod") as parallel:
            parallel.run(lambda local_rank: train(args.backend))


if __name__ == "__main__":
    main()
