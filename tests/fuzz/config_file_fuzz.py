"""--config-file: flags that perseusrun takes, or a ValueError."""

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    import yaml  # noqa: F401 (read_config's)

    from perseus.run.config_file import read_config

FILE = Path(f"/proc/self/fd/{os.memfd_create('config.yaml')}")  # the fuzzer cleans up nothing


def one_input(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        config = read_config(str(FILE))
    except ValueError:
        return
    assert all(isinstance(argument, str) for argument in config.arguments)
    assert all(argument.startswith("--") for argument in config.arguments)
    assert isinstance(config.mpi, bool)


atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
