"""An OpenSSH server on each host, with keys that only the tests know."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from netlab import NETLAB

PORT = 2222
NAMES = ("a", "b")  # of the first hosts, in a configuration that only our ssh reads
# Debian's sshd needs this folder for privilege separation.
PRIVILEGE_SEPARATION = Path("/run/sshd")


@dataclass
class SshHosts:
    """Hosts by name. The launcher runs on the first, and reaches all by ssh."""

    folder: Path
    environment: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {**os.environ, "PERSEUSRUN_RSH": f"ssh -F {self.folder / 'ssh_config'}"}

    at_host_0 = (str(NETLAB), "at", "0")

    def command(
        self,
        *command: str,
        hosts: str = "a:2,b:2",
        port: int = PORT,
        key: str = "key",
        options: tuple[str, ...] = (),
    ) -> list[str]:
        launcher = [sys.executable, "-m", "perseus.run", "-H", hosts, "--ssh-port", str(port)]
        launcher += ["--ssh-identity-file", str(self.folder / key), *options]
        return [str(NETLAB), "at", "0", *launcher, *command]

    def python(self, script: str, **where: str | int | tuple[str, ...]) -> list[str]:
        program = self.folder / "program.py"
        program.write_text(script)
        return self.command(sys.executable, str(program), **where)  # type: ignore[arg-type]

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    @contextlib.contextmanager
    def start(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        job = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            job.kill()
            job.communicate()


@contextlib.contextmanager
def serve_ssh(folder: Path, names: Sequence[str] = NAMES, **more: int | str) -> Iterator[SshHosts]:
    """Skips the test where sshd is missing.

    Args:
      names: of the first hosts.
      more: settings of sshd.
    """
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if sshd is None:
        pytest.skip("the program sshd (package openssh-server) is missing")
    for key in ("key", "wrong_key", "key_of_hosts"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(generate, check=True)
    hosts = "".join(f"Host {name}\n  HostName 10.86.0.{i + 1}\n" for i, name in enumerate(names))
    known = f"Host *\n  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    (folder / "ssh_config").write_text(hosts + known)
    settings = {
        "AuthorizedKeysFile": folder / "key.pub",
        "HostKey": folder / "key_of_hosts",
        "PasswordAuthentication": "no",
        "PidFile": "none",
        "Port": PORT,
        "StrictModes": "no",  # the folder may lie in one that others may write to, such as /tmp
        "UsePAM": "no",
        **more,
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    ours = not PRIVILEGE_SEPARATION.exists()
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    try:
        with contextlib.ExitStack() as servers:
            for i in range(len(names)):
                servers.enter_context(_server(sshd, config, i))
            yield SshHosts(folder)
    finally:
        if ours:
            PRIVILEGE_SEPARATION.rmdir()


@contextlib.contextmanager
def _server(sshd: str, config: Path, host: int) -> Iterator[None]:
    """One that listens already. Leaves no session behind."""
    with subprocess.Popen(
        [str(NETLAB), "at", str(host), sshd, "-D", "-e", "-f", str(config)],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr
        said = []
        for line in server.stderr:
            said.append(line)
            if line.startswith("Server listening"):
                break
        else:
            pytest.fail(f"sshd ended: {''.join(said)}")
        # It goes on to say who comes; nobody may keep it waiting for a reader.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        try:
            yield
        finally:
            server.terminate()
