"""`perseusrun --mpi`: the command that starts the job under Open MPI or MPICH."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Mpirun:
    path: str
    vendor: Literal["Open MPI", "MPICH"]
    major: int


@dataclass(frozen=True)
class MpiJob:
    command: Sequence[str]
    size: int
    hosts: Sequence[tuple[str, int]]  # empty: this host
    exported: Mapping[str, str]  # environment that every rank gets
    binding: Sequence[str] = field(default_factory=tuple)  # instead of binding to nothing
    more: Sequence[str] = field(default_factory=tuple)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timestamps: bool = False
    output: str | None = None
    root: bool = False


def find_mpirun() -> Mpirun:
    """The mpirun on the path. Raises ValueError if there is none, or none that we know."""
    path = shutil.which("mpirun")
    if path is None:
        raise ValueError(
            "--mpi: there is no mpirun on the path; install Open MPI or MPICH, or leave --mpi away "
            "to use the built-in launcher"
        )
    result = subprocess.run([path, "--version"], capture_output=True, text=True)
    return identify(path, result.stdout + result.stderr)


def identify(path: str, version_text: str) -> Mpirun:
    """Reads what `mpirun --version` says. Raises ValueError for an MPI that we do not know."""
    if match := re.search(r"\(Open MPI\)\s+(\d+)", version_text):
        return Mpirun(path, "Open MPI", int(match[1]))
    # MPICH's, and the launchers of its family (Intel MPI, MVAPICH), call themselves Hydra.
    if re.search(r"HYDRA|Intel\(R\) MPI", version_text, re.IGNORECASE):
        match = re.search(r"Version:?\s+(\d+)", version_text)
        return Mpirun(path, "MPICH", int(match[1]) if match else 0)
    first = next(iter(version_text.strip().splitlines()), "nothing")
    raise ValueError(f"--mpi: {path} is neither Open MPI's nor MPICH's: it says '{first}'")


def mpirun_command(mpirun: Mpirun, job: MpiJob) -> list[str]:
    build = _open_mpi if mpirun.vendor == "Open MPI" else _mpich
    return [mpirun.path, *build(mpirun, job), *job.more, *job.command]


def _open_mpi(mpirun: Mpirun, job: MpiJob) -> list[str]:
    arguments = ["-np", str(job.size)]
    arguments += ["--allow-run-as-root"] if job.root else []
    arguments += _hosts("-H", job)
    # Without hosts and their slots, as many ranks as were asked for run here, as without --mpi.
    by = "slot" if job.hosts else "slot:OVERSUBSCRIBE"
    arguments += job.binding or ["--bind-to", "none", "--map-by", by]
    if mpirun.major >= 5:
        tags = ["tag", "timestamp"] if job.timestamps else ["tag"]
        arguments += ["--output", ",".join(tags)]
        arguments += ["--output", f"dir={job.output}"] if job.output else []
    else:
        arguments += ["--tag-output"] + (["--timestamp-output"] if job.timestamps else [])
        arguments += ["--output-filename", job.output] if job.output else []
    ssh = _ssh_arguments(job)
    if ssh:
        arguments += [
            "--mca",
            "plm_ssh_args" if mpirun.major >= 5 else "plm_rsh_args",
            shlex.join(ssh),
        ]
    for name in _names(job.exported):
        arguments += ["-x", name]
    return arguments


def _mpich(mpirun: Mpirun, job: MpiJob) -> list[str]:
    arguments = ["-n", str(job.size)]
    arguments += _hosts("-hosts", job)
    arguments += job.binding or ["-bind-to", "none"]
    arguments += ["-prepend-rank"]
    arguments += ["-outfile-pattern", f"{job.output}/rank.%r/stdout"] if job.output else []
    arguments += ["-errfile-pattern", f"{job.output}/rank.%r/stderr"] if job.output else []
    arguments += ["-genvlist", ",".join(_names(job.exported))]
    return arguments


def _hosts(flag: str, job: MpiJob) -> list[str]:
    return [flag, ",".join(f"{name}:{slots}" for name, slots in job.hosts)] if job.hosts else []


def _ssh_arguments(job: MpiJob) -> list[str]:
    arguments = ["-p", str(job.ssh_port)] if job.ssh_port else []
    return arguments + (["-i", job.ssh_identity_file] if job.ssh_identity_file else [])


def _names(environment: Iterable[str]) -> list[str]:
    """Names that mpirun can pass on by name; their values stay off the command line."""
    return sorted(name for name in environment if re.fullmatch(r"[A-Za-z_]\w*", name))
