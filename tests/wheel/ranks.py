"""What every wheel must do: `perseusrun -np 2 python ranks.py`, with no framework installed."""

import importlib.metadata
from pathlib import Path

import numpy

import perseus
import perseus_core

assert perseus.__version__ == importlib.metadata.version("perseus-train")
for package in (perseus, perseus_core):
    assert Path(package.__file__).with_name("py.typed").exists(), package
perseus_core.init()
assert perseus_core.size() == 2, perseus_core.size()
result = perseus_core.allreduce(numpy.ones(3), perseus_core.ReduceOp.SUM, name="ones")
assert (result == perseus_core.size()).all(), result
perseus_core.shutdown()
