"""The backend that Keras uses in this process."""

from __future__ import annotations

import keras

from perseus._keras.backend import Backend, backend_named

__all__ = ["backend"]

backend: Backend = backend_named(keras.backend.backend())
