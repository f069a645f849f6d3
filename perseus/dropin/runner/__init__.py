"""Modules of horovod.runner that users import and Perseus itself does not need."""

from perseus.dropin.runner.arguments import HorovodArgs as _HorovodArgs
from perseus.run.api import run

__all__ = ["_HorovodArgs", "run"]
