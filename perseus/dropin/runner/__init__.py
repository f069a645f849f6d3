"""What Horovod has in horovod.runner and users import, but Perseus has no use for itself."""
