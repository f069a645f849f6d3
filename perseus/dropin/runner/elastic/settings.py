"""The settings of an elastic launch, as an object."""

from __future__ import annotations

import warnings
from typing import Any

from perseus.dropin.runner.common.util.settings import BaseSettings

__all__ = ["ElasticSettings"]


class ElasticSettings(BaseSettings):
    """`discovery` is a HostDiscovery. It stays behind when the settings are pickled."""

    def __init__(
        self,
        discovery: Any,
        min_num_proc: int | None,
        max_num_proc: int | None,
        elastic_timeout: int | None,
        reset_limit: int | None,
        cooldown_range: tuple[int, int] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(elastic=True, **kwargs)
        self.discovery = discovery
        self.min_num_proc = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
        self.max_num_proc = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "discovery": None}


def _renamed(old: str, value: int | None, new: str, other: int | None) -> int | None:
    """Returns the value of an argument, which may be given under its deprecated name."""
    if value is None:
        return other
    warnings.warn(f"{old} is deprecated; it is called {new}", DeprecationWarning, stacklevel=3)
    return value
