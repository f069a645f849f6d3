"""Where an elastic job's hosts come from: a script, a hosts file that changes, or a fixed list."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from perseus.elastic.discovery import DiscoveryError
from perseus.elastic.program_output import output_of
from perseus.run.hosts import (
    NAME_ONCE,
    Host,
    check_distinct,
    has_slots,
    hostfile_entries,
    parse_host,
)

__all__ = ["FixedSource", "HostsFileSource", "ScriptSource"]

#: Seconds after which a script is killed.
SCRIPT_SECONDS = 60.0
# A file that has changed within this time may still be being written.
_SETTLED_SECONDS = 0.05
_LOOKS_AT_A_CHANGING_FILE = 20


class FixedSource:
    """The same hosts for ever."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts = list(hosts)

    def find(self) -> list[Host]:
        return list(self._hosts)


class ScriptSource:
    """Hosts that a script prints, each in a line: `host`, or `host:slots`.

    Blank lines and # comments count for nothing. The order is the script's. A host may be named
    once. An IPv6 address stands in brackets. Names are kept as they are, so `localhost` and
    `127.0.0.1` are two hosts.

    Args:
      script: a file, or a command of the shell. The file need not be on PATH.
      default_slots: those of a host in whose line there are none; without it, such a line is an
        error.
      timeout: seconds after which the script, and what it has started, is killed.
    """

    def __init__(
        self, script: str, default_slots: int | None = None, timeout: float = SCRIPT_SECONDS
    ) -> None:
        self._script = script
        self._default_slots = default_slots
        self._timeout = timeout
        self._cancelled = threading.Event()

    def find(self) -> list[Host]:
        return self.parse(self.output())

    def output(self) -> str:
        """Runs the script; returns what it prints. Raises DiscoveryError if it fails."""
        command = self._script
        if os.path.isfile(command):
            command = shlex.quote(os.path.abspath(command))
        shell = ["/bin/sh", "-c", command]
        return output_of(shell, self._name(), self._timeout, self._cancelled)

    def parse(self, text: str) -> list[Host]:
        """Reads what the script has printed. Raises DiscoveryError, which names the line."""
        hosts: dict[str, Host] = {}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            try:
                host = self._host(line)
                if hosts.setdefault(host.name, host) is not host:
                    raise ValueError(f"'{host.name}' is named a second time; {NAME_ONCE}")
            except ValueError as error:
                raise DiscoveryError(
                    f"{self._name()}, line {number} of its output: {error}"
                ) from None
        return list(hosts.values())

    def cancel(self) -> None:
        self._cancelled.set()

    def _host(self, line: str) -> Host:
        if not line.isprintable():
            raise ValueError(f"{line!r} is not of the form host:slots")
        if self._default_slots is not None:
            return parse_host(line, self._default_slots)
        host = parse_host(line)
        if not has_slots(line):
            raise ValueError(f"'{line}' names no slots; print host:slots, or give --slots-per-host")
        return host

    def _name(self) -> str:
        return f"host discovery script {self._script!r}"


class HostsFileSource:
    """Hosts in a file of lines `host slots=N` or `host:N`, which is read anew each time.

    A file that has just been changed is read when it has not been changed for 50 ms, but after a
    second in any case. To be safe from a file half written, write another, and rename it. A host
    may be named once.

    Args:
      default_slots: those of a host in whose line there are none.
    """

    def __init__(self, path: str | Path, default_slots: int = 1) -> None:
        self._path = Path(path)
        self._default_slots = default_slots

    def find(self) -> list[Host]:
        self._wait_until_written()
        try:
            hosts = hostfile_entries(self._path, self._default_slots)
            check_distinct(hosts, str(self._path))
        except ValueError as error:
            raise DiscoveryError(str(error)) from None
        return hosts

    def _wait_until_written(self) -> None:
        for _ in range(_LOOKS_AT_A_CHANGING_FILE):
            try:
                age = time.time() - self._path.stat().st_mtime
            except OSError:
                return  # reading it says why
            if not 0 <= age < _SETTLED_SECONDS:
                return
            time.sleep(_SETTLED_SECONDS - age)
