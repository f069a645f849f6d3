"""Training in the way of many public scripts for Horovod: see ../test_unchanged_scripts.py.

DistributedSampler, loader workers, gradient accumulation, warm-up of the learning rate, metrics
over the ranks, checkpoints of rank 0, resuming.
"""

import argparse
import math
import os

import horovod.torch as hvd
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
import torch.utils.data.distributed
from torch import nn, optim


class Metric:
    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val):
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    train_loss = Metric("train_loss")
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):
            output = model(data[i : i + args.batch_size])
            loss = F.cross_entropy(output, target[i : i + args.batch_size])
            train_loss.update(loss)
            loss.div_(math.ceil(float(len(data)) / args.batch_size))
            loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch} train {train_loss.avg.item():.6f}")


def validate(epoch):
    model.eval()
    val_loss = Metric("val_loss")
    with torch.no_grad():
        for data, target in val_loader:
            val_loss.update(F.cross_entropy(model(data), target))
    if hvd.rank() == 0:
        print(f"epoch {epoch} validation {val_loss.avg.item():.6f}")


def adjust_learning_rate(epoch, batch_idx):
    if epoch < args.warmup_epochs:
        epoch += float(batch_idx + 1) / len(train_loader)
        lr_adj = 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    else:
        lr_adj = 1.0
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * lr_adj


def save_checkpoint(epoch):
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


def make_loader(dataset, batch_size):
    kwargs = {"num_workers": 1, "persistent_workers": True} if args.workers else {}
    # A process forked from one that runs threads of its own may hang.
    if args.workers and "forkserver" in mp.get_all_start_methods():
        kwargs["multiprocessing_context"] = "forkserver"
    sampler = torch.utils.data.distributed.DistributedSampler(
        dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size, sampler=sampler, **kwargs)
    return sampler, loader


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-format", default="checkpoint-{epoch}.pth.tar")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--base-lr", type=float, default=0.01)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--workers", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if torch.cuda.is_available() and hvd.nccl_built():
        torch.cuda.set_device(hvd.local_rank())

    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(
        torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch"
    ).item()

    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (288,), generator=generator)
    images = 0.3 * torch.randn(288, 3, 16, 16, generator=generator)
    images[torch.arange(288), labels % 3] += labels[:, None, None] - 1.5
    train_dataset = torch.utils.data.TensorDataset(images[:240], labels[:240])
    val_dataset = torch.utils.data.TensorDataset(images[240:], labels[240:])
    train_sampler, train_loader = make_loader(
        train_dataset, args.batch_size * args.batches_per_allreduce
    )
    _, val_loader = make_loader(val_dataset, args.batch_size)

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    optimizer = optim.SGD(model.parameters(), lr=args.base_lr, momentum=0.9, weight_decay=5e-5)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        validate(epoch)
        save_checkpoint(epoch)
