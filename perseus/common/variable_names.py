"""Parts of variables' names that are the same on all ranks."""

from __future__ import annotations

import re

__all__ = ["own_name"]


def own_name(name: str) -> str:
    """Returns the last part of a variable's name: kernel, for model/dense_7/kernel.

    The parts before it differ if one rank has loaded its model from a file and the others have
    built theirs, because Keras numbers the layers of a process. Together with its position, the
    last part identifies a variable.
    """
    return re.sub(r"(_\d+)?(:\d+)?$", "", name.rpartition("/")[2])
