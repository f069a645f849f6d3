"""The command line of mpirun for `perseusrun --mpi`, for Open MPI and MPICH."""

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
class MpirunOptions:
    """The options of mpirun that a job needs."""

    size: int
    hosts: Sequence[tuple[str, int]]  # empty for this host
    exported: Mapping[str, str]  # the environment of every rank
    binding: Sequence[str] = field(default_factory=tuple)  # in place of binding to nothing
    more: Sequence[str] = field(default_factory=tuple)
    # The command that reaches another host, with its options; empty for mpirun's own choice.
    remote_shell: Sequence[str] = field(default_factory=tuple)
    interfaces: Sequence[str] = field(default_factory=tuple)  # for MPI's own traffic; empty for any
    tcp: bool = False
    root: bool = False


def find_mpirun() -> Mpirun:
    """Returns the mpirun on the path. Raises ValueError if there is none, or an unknown one."""
    path = shutil.which("mpirun")
    if path is None:
        raise ValueError(
            "--mpi: there is no mpirun on the path; install Open MPI or MPICH, or omit --mpi to "
            "use the built-in launcher"
        )
    result = subprocess.run([path, "--version"], capture_output=True, text=True)
    return identify(path, result.stdout + result.stderr)


def identify(path: str, version_text: str) -> Mpirun:
    """Reads the output of `mpirun --version`. Raises ValueError for an unknown MPI."""
    if match := re.search(r"\(Open MPI\)\s+(\d+)", version_text):
        return Mpirun(path, "Open MPI", int(match[1]))
    # The launchers of MPICH and its family (Intel MPI, MVAPICH) call themselves Hydra.
    if re.search(r"HYDRA|Intel\(R\) MPI", version_text, re.IGNORECASE):
        match = re.search(r"Version:?\s+(\d+)", version_text)
        return Mpirun(path, "MPICH", int(match[1]) if match else 0)
    first = next(iter(version_text.strip().splitlines()), "nothing")
    raise ValueError(f"--mpi: {path} is neither Open MPI's nor MPICH's: its version is '{first}'")


def mpirun_environment(mpirun: Mpirun, options: MpirunOptions) -> dict[str, str]:
    """Returns variables for the end of mpirun's environment, which its command line cannot set."""
    if mpirun.vendor == "Open MPI":
        return {}
    environment = {"FI_PROVIDER": "tcp", "UCX_TLS": "tcp,sm,self"} if options.tcp else {}
    if len(options.remote_shell) > 1:
        environment["HYDRA_LAUNCHER_EXTRA_ARGS"] = shlex.join(options.remote_shell[1:])
    # Hydra 5.0.2 does not pass the last variable of the environment to other hosts.
    return {**environment, "PERSEUSRUN_LAST": ""}


def mpirun_command(mpirun: Mpirun, options: MpirunOptions, command: Sequence[str]) -> list[str]:
    build = _open_mpi if mpirun.vendor == "Open MPI" else _mpich
    return [mpirun.path, *build(mpirun, options), *options.more, *command]


def _open_mpi(mpirun: Mpirun, options: MpirunOptions) -> list[str]:
    arguments = ["-np", str(options.size)]
    arguments += ["--allow-run-as-root"] if options.root else []
    arguments += _hosts("-H", options)
    # Without hosts, all ranks run here, however many processors there are, as without --mpi.
    by = "slot" if options.hosts else "slot:OVERSUBSCRIBE"
    arguments += options.binding or ["--bind-to", "none", "--map-by", by]
    if options.remote_shell:
        launcher = "plm_ssh" if mpirun.major >= 5 else "plm_rsh"
        shell, *shell_options = options.remote_shell
        arguments += ["--mca", f"{launcher}_agent", shell]
        if shell_options:
            arguments += ["--mca", f"{launcher}_args", shlex.join(shell_options)]
    arguments += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"] if options.tcp else []
    if options.interfaces:
        arguments += ["--mca", "btl_tcp_if_include", ",".join(options.interfaces)]
    for name in _names(options.exported):
        arguments += ["-x", name]
    return arguments


def _mpich(mpirun: Mpirun, options: MpirunOptions) -> list[str]:
    arguments = ["-n", str(options.size)]
    arguments += _hosts("-hosts", options)
    if options.remote_shell:
        arguments += ["-launcher", "ssh", "-launcher-exec", options.remote_shell[0]]
    arguments += options.binding or ["-bind-to", "none"]
    arguments += ["-iface", options.interfaces[0]] if options.interfaces else []  # Hydra takes one
    passed = {**options.exported, **mpirun_environment(mpirun, options)}
    arguments += ["-genvlist", ",".join(_names(passed))]
    return arguments


def _hosts(flag: str, options: MpirunOptions) -> list[str]:
    if not options.hosts:
        return []
    return [flag, ",".join(f"{name}:{slots}" for name, slots in options.hosts)]


def _names(environment: Iterable[str]) -> list[str]:
    """Returns the names that mpirun can pass on; the values are not on the command line."""
    return sorted(name for name in environment if re.fullmatch(r"[A-Za-z_]\w*", name))
