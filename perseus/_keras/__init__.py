"""What the interfaces for Keras share: perseus.keras, and perseus.tensorflow.keras for tf.keras.

Keras 3 on TensorFlow and on PyTorch, and Keras 2. Nothing here imports a framework but the two
modules that are named after one, which have the same functions: see perseus._keras.backend.
"""
