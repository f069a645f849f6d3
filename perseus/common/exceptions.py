"""The exceptions that Horovod's scripts catch."""

from __future__ import annotations

from perseus_core.errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed.

    Attributes:
      skip_sync: whether hosts have only been removed, so that the ranks' states still agree.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The framework has a version that cannot be used."""

    name: str

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.name, self.version, self.installed_version)


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"{name} {installed_version} is installed, but it must be {version}"
