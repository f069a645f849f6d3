"""perseus.tensorflow.horovod.keras.elastic under a shorter name."""

from perseus.tensorflow.horovod.keras.elastic import *
from perseus.tensorflow.horovod.keras.elastic import __all__ as __all__
