"""The speed of reducing a float32 tensor in place, beside copies between the GPU and the host.

perseusrun -np N python tests/gpu/allreduce.py [--mib 64] [--quick] [--figures FILE]

The limit for data that goes through the host: every rank's GPU copies the same number of bytes to
pinned memory and back, both at the same time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import place
import torch

import perseus.torch.horovod as hvd


def median_seconds(work: Callable[[], object], iterations: int) -> float:
    """Returns the median over iterations of the slowest rank's time."""
    taken = []
    for i in range(iterations + 3):
        place.synchronize()
        hvd.barrier()
        begin = time.perf_counter()
        work()
        place.synchronize()
        slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        if i >= 3:
            taken.append(hvd.allreduce(slowest, op=hvd.Max, name="slowest").item())
        else:
            hvd.barrier()
    return statistics.median(taken)


def copies(tensor: torch.Tensor) -> Callable[[], None]:
    """Copies to the host and back, at the same time."""
    pinned = [torch.empty_like(tensor, device="cpu", pin_memory=True) for _ in range(2)]
    target = torch.empty_like(tensor)
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy() -> None:
        with torch.cuda.stream(streams[0]):
            pinned[0].copy_(tensor, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            target.copy_(pinned[1], non_blocking=True)

    return copy


def to_host(tensor: torch.Tensor) -> Callable[[], None]:
    """Copies to the host on rank 0 only."""
    pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return lambda: pinned.copy_(tensor, non_blocking=True) if hvd.rank() == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=64)
    place.add_arguments(parser)
    args = parser.parse_args()
    hvd.init()
    device = place.device()
    count = args.mib << 20
    iterations = 10 if args.quick else 50
    tensor = torch.zeros(count // 4, device=device)
    for _ in range(2 if args.quick else 20):  # until the engine has tuned itself
        hvd.allreduce_(tensor, op=hvd.Sum, name="reduced")
    taken = median_seconds(lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="reduced"), iterations)
    found = {"ms": round(taken * 1e3, 3), "GB/s": round(count / taken / 1e9, 2)}
    if not place.is_cpu():
        alone = median_seconds(to_host(tensor), iterations)
        both = median_seconds(copies(tensor), iterations)
        found["rank 0 to pinned memory, GB/s"] = round(count / alone / 1e9, 2)
        found["all ranks to the host and back, ms"] = round(both * 1e3, 3)
        found["times of that"] = round(taken / both, 2)
    small = torch.zeros(1024, device=device)
    latency = median_seconds(lambda: hvd.allreduce_(small, op=hvd.Sum, name="small"), iterations)
    found["4 KiB, us"] = round(latency * 1e6, 1)
    if hvd.rank() == 0:
        place.keep(found, args.figures)
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
