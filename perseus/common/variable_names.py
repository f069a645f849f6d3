"""Names of variables that are the same on all ranks."""

from __future__ import annotations

import re

__all__ = ["without_counts"]


def without_counts(name: str) -> str:
    """dense/kernel, of dense_7/kernel: Keras counts the layers of a process, and a rank that loads
    a file, say, has made more of them. What is left tells variables apart with their places only.
    """
    return re.sub(r"_\d+(?=[/:]|$)", "", name)
