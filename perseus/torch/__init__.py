"""Perseus for PyTorch; perseus.torch.horovod is its interface under Horovod's name."""

from perseus.torch.horovod import *  # noqa: F403
from perseus.torch.horovod import __all__ as __all__
