"""Places the tensors of these tests and programs, and writes their figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "python/parallel"))
from torch_device import own_gpu


def is_cpu() -> bool:
    return os.environ.get("PERSEUS_GPU_CHECK_DEVICE") == "cpu"


def device() -> torch.device:
    """This rank's GPU, made the current one; the CPU if PERSEUS_GPU_CHECK_DEVICE says so."""
    return torch.device("cpu") if is_cpu() else own_gpu()


def synchronize() -> None:
    if not is_cpu():
        torch.cuda.synchronize()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a short run: rough figures")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there")


def keep(figures: dict[str, Any], file: Path | None) -> None:
    """Writes the figures as JSON, and prints them."""
    if file:
        file.write_text(json.dumps(figures))
    for key, value in figures.items():
        print(f"{key}: {value}", flush=True)
