"""How another host is reached: by ssh, or by what PERSEUSRUN_RSH names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from perseus.run.flag_values import words

# ssh may ask other programs what its configuration is, which may hang.
_SECONDS_TO_CONFIGURE = 10

# Names a command that runs another on a host, as `ssh host command` does, to use instead of ssh.
REMOTE_SHELL_VARIABLE = "PERSEUSRUN_RSH"


@dataclass(frozen=True)
class RemoteShell:
    """Runs a command on another host: by ssh, or by another command in its place."""

    port: int | None = None
    identity_file: str | None = None
    command: list[str] = field(default_factory=lambda: ["ssh"])

    def __post_init__(self) -> None:
        if not self._is_ssh and (self.port or self.identity_file):
            raise ValueError(
                f"a port and an identity file are for ssh; '{self.command[0]}' must know by "
                "itself how to reach a host"
            )

    @classmethod
    def from_environment(cls, port: int | None, identity_file: str | None) -> RemoteShell:
        """Returns the one that PERSEUSRUN_RSH names, or ssh. ValueError for options it lacks."""
        command = words(os.environ.get(REMOTE_SHELL_VARIABLE, ""), REMOTE_SHELL_VARIABLE)
        return cls(port, identity_file, command or ["ssh"])

    def wrap(self, host: str, command: list[str], connect_timeout: int) -> list[str]:
        line = shlex.join(["exec", *command])
        end_of_options = ["--"] if self._is_ssh else []
        return [*self.command, *self.options(connect_timeout, [host]), *end_of_options, host, line]

    def options(self, connect_timeout: int, hosts: Sequence[str]) -> list[str]:
        """Returns the options to put between the command and one of these hosts."""
        if not self._is_ssh:
            return []
        # Nobody can type a password. ssh uses the first of two equal options, so those in the
        # command itself win.
        options = ["-o", "BatchMode=yes"]
        # Nobody can be asked, either: where ssh would, a host's key is accepted at first sight, and
        # a changed one refused. Whoever has configured ssh to be stricter is not overruled.
        if all(self._configured(host, "stricthostkeychecking") in ("ask", "") for host in hosts):
            options += ["-o", "StrictHostKeyChecking=accept-new"]
        options += ["-o", f"ConnectTimeout={connect_timeout}", "-o", "ServerAliveInterval=10"]
        # Without it, a greeting of the host would hide the reason why it cannot be used.
        options += ["-o", "LogLevel=ERROR"]
        return [*options, *self._address_options()]

    def name_on_network(self, host: str) -> str:
        """Returns the network name of `host`, which may be known to ssh's configuration only."""
        return self._configured(host, "hostname") or host if self._is_ssh else host

    def _configured(self, host: str, key: str) -> str:
        """Returns what ssh's configuration says for a host; "" if that is not known.

        Raises ValueError if that takes too long: a user may have configured ssh to be strict.
        """
        query = [*self.command, "-G", *self._address_options(), "--", host]
        try:
            answer = subprocess.run(
                query,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_TO_CONFIGURE,
            )
        except OSError:
            return ""  # there is no ssh: starting the agent will fail with that message
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"ssh has not found out within {_SECONDS_TO_CONFIGURE} s how it is configured for "
                f"host '{host}'; try `{' '.join(query)}`"
            ) from None
        match = re.search(rf"^{key} (\S+)$", answer.stdout, re.MULTILINE)
        return match[1] if match else ""

    @property
    def _is_ssh(self) -> bool:
        return os.path.basename(self.command[0]) == "ssh"

    def _address_options(self) -> list[str]:
        options = ["-p", str(self.port)] if self.port else []
        return options + (["-i", self.identity_file] if self.identity_file else [])
