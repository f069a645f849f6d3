"""Using perseus.keras on PyTorch where there is no TensorFlow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from conftest import skip_or_fail

WITHOUT_TENSORFLOW = """
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
sys.modules["tensorflow"] = None  # so that no import of it succeeds
import keras
import perseus.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mean_squared_error")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(keras.ops.ones((4, 2)), keras.ops.ones((4, 1)), verbose=0, callbacks=callbacks)
print("well")
"""


def test_it_does_without_tensorflow() -> None:
    for module in ("keras", "torch"):
        if importlib.util.find_spec(module) is None:
            skip_or_fail(f"{module} is not installed")
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "well\n", result.stderr
