"""The parts of horovod.runner.util that users import."""
