"""The launcher: perseusrun, and `run` for the same from Python."""

from perseus.run.api import run

__all__ = ["run"]
