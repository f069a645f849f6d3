"""horovod.runner.common.util: what users take from it."""
