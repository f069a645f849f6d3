"""Perseus for PyTorch; perseus.torch.horovod is its interface under Horovod's name."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "perseus.torch needs PyTorch, which is not installed; see `pip install 'perseus[torch]'`",
        name="torch",
    )

from perseus.torch.horovod import *  # noqa: F403
from perseus.torch.horovod import __all__ as __all__
