"""perseus.tensorflow.horovod.keras.callbacks under a shorter name."""

from perseus.tensorflow.horovod.keras.callbacks import *
from perseus.tensorflow.horovod.keras.callbacks import __all__ as __all__
