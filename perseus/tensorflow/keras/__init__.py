"""perseus.tensorflow.horovod.keras, Horovod's interface for tf.keras, under a shorter name."""

from perseus.tensorflow.horovod.keras import *
from perseus.tensorflow.horovod.keras import __all__ as __all__
