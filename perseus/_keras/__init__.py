"""The parts that perseus.keras and perseus.tensorflow.keras, for tf.keras, have in common.

They serve Keras 3 on TensorFlow and on PyTorch, and Keras 2. Nothing here imports a framework:
`perseus.tensorflow.keras_backend` and `perseus.torch.keras_backend` have what differs between the
frameworks, as the same functions; see perseus._keras.backend.
"""
