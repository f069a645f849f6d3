"""Perseus for TensorFlow; perseus.tensorflow.horovod is its interface under Horovod's name."""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    raise ModuleNotFoundError(
        "perseus.tensorflow needs TensorFlow, which is not installed; see `pip install tensorflow`",
        name="tensorflow",
    )

from perseus.tensorflow.horovod import *
from perseus.tensorflow.horovod import __all__ as __all__
