"""Modules of horovod.runner that users import and Perseus itself does not need."""
