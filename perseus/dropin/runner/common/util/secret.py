"""Keys, and digests that prove that a message comes from somebody who has the key."""

from __future__ import annotations

import hmac
import secrets

__all__ = [
    "DIGEST_LENGTH",
    "HOROVOD_SECRET_KEY",
    "SECRET_LENGTH",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]

SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32  # bytes
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"


def make_secret_key() -> bytes:
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Returns the HMAC-SHA256 of a message."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    return hmac.compare_digest(compute_digest(key, message), digest)
