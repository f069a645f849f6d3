"""perseus.tensorflow.horovod.keras.callbacks under a shorter name."""

from perseus.tensorflow.horovod.keras.callbacks import *  # noqa: F403
from perseus.tensorflow.horovod.keras.callbacks import __all__ as __all__
