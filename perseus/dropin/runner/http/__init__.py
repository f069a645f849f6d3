"""The parts of horovod.runner.http that programs use."""
