"""Perseus for PyTorch; perseus.torch.horovod is its interface under Horovod's name."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "perseus.torch needs PyTorch, which is not installed; see `pip install torch`",
        name="torch",
    )

import torch

from perseus.common.exceptions import HorovodVersionMismatchError

# DistributedOptimizer needs it.
if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    raise HorovodVersionMismatchError("torch", "2.1 or newer", torch.__version__)

import torch.distributed

if torch.distributed.is_available():
    from perseus.torch import c10d as c10d  # registers the backend "perseus"
    from perseus.torch import meeting as meeting  # ranks meet through PyTorch's store

from perseus.torch.horovod import *
from perseus.torch.horovod import __all__ as __all__
