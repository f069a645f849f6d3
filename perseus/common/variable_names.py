"""Names of variables that are the same on all ranks."""

from __future__ import annotations

import re

__all__ = ["own_name"]


def own_name(name: str) -> str:
    """kernel, of model/dense_7/kernel.

    What goes before differs between a model that a rank has loaded from a file and those that the
    others have made, and Keras counts the layers of a process. What is left tells a variable with
    its place.
    """
    return re.sub(r"(_\d+)?(:\d+)?$", "", name.rpartition("/")[2])
