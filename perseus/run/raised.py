"""An exception of a rank on its way to the caller of `perseus.run.run`."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import cloudpickle


@dataclass(frozen=True)
class Raised:
    """What the function raised: the exception by cloudpickle, None if it cannot be pickled, and its
    traceback as text, of which the last line names the exception."""

    pickled: bytes | None
    text: str

    @classmethod
    def from_exception(cls, error: Exception) -> Raised:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            return cls(cloudpickle.dumps(error), text)
        except Exception:  # what an exception holds may raise anything
            return cls(None, text)

    def exception(self) -> Exception:
        """Returns the exception, whose cause is its traceback in the rank."""
        try:
            error = cloudpickle.loads(self.pickled) if self.pickled else None
        except Exception:  # its class may take other arguments than it was pickled with
            error = None
        if not isinstance(error, Exception):
            return RemoteTraceback(self.text)
        error.__cause__ = RemoteTraceback(self.text)
        return error


class RemoteTraceback(Exception):
    """Shows the traceback of an exception in a rank, as concurrent.futures does for its workers."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
