"""A Slurm of two nodes: a controller, a slurmd on each of two hosts, and all files in a folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

NODES = ("node0", "node1")  # of hosts 0 and 1
SLURM_CONF = """
ClusterName=perseus
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
# No more than any container has: no cgroups, and more processors than there are.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName=node[0-1] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# A host's network, name and /etc/hosts. `ip netns exec` hides /sys/fs/cgroup, which slurmd wants.
ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
SECONDS_TO_START = 30


@dataclass
class Slurm:
    folder: Path

    def at(self, host: int, *command: str) -> list[str]:
        namespaces = ["nsenter", f"--net=/run/netns/perseus{host}", "unshare", "-mu"]
        arguments = [str(self.folder / "hosts"), NODES[host], *command]
        return [*namespaces, "sh", "-c", ENTER, "sh", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.at(0, *command), env=self.environment, capture_output=True, text=True, timeout=60
        )

    def wait_until_idle(self) -> None:
        """Waits until the controller has heard of every node, or has ended what ran there."""
        deadline = time.monotonic() + SECONDS_TO_START
        while True:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%T")
            if states.stdout.split() == ["idle"] * len(NODES):
                return
            if time.monotonic() >= deadline:
                logs = [path.read_text()[-2000:] for path in self.folder.glob("*.log")]
                pytest.fail("\n".join([states.stdout, states.stderr, *logs]))
            time.sleep(0.1)

    @contextlib.contextmanager
    def daemon(self, host: int, *command: str) -> Iterator[None]:
        with subprocess.Popen(
            self.at(host, *command),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield
            finally:
                process.terminate()


@contextlib.contextmanager
def run_slurm(folder: Path) -> Iterator[Slurm]:
    """Skips the test where Slurm is missing."""
    programs = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "nsenter", "unshare")
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if missing:
        pytest.skip(f"programs are missing (packages slurm-wlm, munge): {', '.join(missing)}")
    names = "".join(f"10.86.0.{i + 1} {name}\n" for i, name in enumerate(NODES))
    (folder / "hosts").write_text(Path("/etc/hosts").read_text() + names)
    (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder))
    (folder / "state").mkdir()
    for name in NODES:
        (folder / f"spool.{name}").mkdir()
    slurm = Slurm(folder)
    with contextlib.ExitStack() as daemons:
        daemons.enter_context(_munge(folder, path))
        daemons.enter_context(slurm.daemon(0, "slurmctld", "-D"))
        for host in range(len(NODES)):
            daemons.enter_context(slurm.daemon(host, "slurmd", "-D"))
        slurm.wait_until_idle()
        yield slurm


@contextlib.contextmanager
def _munge(folder: Path, path: str) -> Iterator[None]:
    """Runs munge, which authenticates Slurm's daemons. It serves when its command has returned."""
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    # Temporary folders may be written to by others, which it would refuse.
    command = [shutil.which("munged", path=path) or "munged", "--force"]
    command += [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    command += [f"--socket={folder}/munge.socket"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([*command, "--stop"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
