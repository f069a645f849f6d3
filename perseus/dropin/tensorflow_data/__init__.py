"""horovod.tensorflow.data: TensorFlow's data service, on processes of a job of its own."""
