"""A name for what shares memory: a host, or a container on it."""

from __future__ import annotations

import hashlib
import os
import socket

__all__ = ["host_hash"]

_NAMESPACES = "/proc/self/ns"


def host_hash(salt: object = None) -> str:
    """Returns the host's short name and a digest of what tells apart hosts and containers.

    A salt tells apart what would otherwise be the same host.
    """
    host = socket.gethostname()
    about = f"{host}-{_namespaces()}" + (f"-{salt}" if salt else "")
    return f"{host.partition('.')[0]}-{_hash(about)}"


def _namespaces() -> str:
    try:
        names = sorted(os.listdir(_NAMESPACES))
        return " ".join(os.readlink(os.path.join(_NAMESPACES, name)) for name in names)
    except OSError:
        return ""


def _hash(string: str) -> str:
    return hashlib.md5(string.encode(), usedforsecurity=False).hexdigest()
