"""The parts of horovod.runner.common.service that users import."""
