"""Where tensors of tests are: in CPU memory or, with PERSEUS_TEST_DEVICE=cuda, on GPUs."""

from __future__ import annotations

import os

import torch


def of_tests() -> torch.device:
    is_cuda = os.environ.get("PERSEUS_TEST_DEVICE", "cpu") == "cuda"
    return own_gpu() if is_cuda else torch.device("cpu")


def own_gpu() -> torch.device:
    """This rank's GPU, made the current one."""
    index = int(os.environ.get("PERSEUS_LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
