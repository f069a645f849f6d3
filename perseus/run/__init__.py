"""perseusrun, the launcher, and `run`, the same from Python."""

from perseus.run.api import run

__all__ = ["run"]
