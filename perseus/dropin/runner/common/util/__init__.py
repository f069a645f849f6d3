"""The parts of horovod.runner.common.util that users import."""
