"""Objects as text, for environment variables and the like."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle

__all__ = ["dumps_base64", "loads_base64"]


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Encodes an object, also a function or lambda; returns bytes unless `to_ascii`."""
    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Decodes an object, and runs what it says: give it only what comes from whom you trust."""
    return cloudpickle.loads(base64.b64decode(encoded))
