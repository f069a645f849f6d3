"""Starts the ranks of each contender, on this host or over several.

A host is a command prefix that runs a command there, such as `ip netns exec lab0`. All hosts share
this machine's files and process ids. Ranks fill the hosts in blocks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from contest import compiled, ending

ROOT = Path(__file__).resolve().parents[2]
#: Environments with Horovod, by the contenders' programs.
PEERS = {
    "horovod_torch": ROOT / "build/peers",
    "horovod_tensorflow": ROOT / "build/peers-tensorflow",
}
MPI_OF_HOROVOD = "openmpi"
MXNET = ROOT / "build/mxnet"
#: The environments of programs that this Python does not run.
ENVIRONMENTS = {**PEERS, "perseus_mxnet": MXNET, "mxnet_kvstore": MXNET}


class UnavailableError(Exception):
    """A contender cannot run here; the message says why, and what to do."""


@dataclass(frozen=True)
class Host:
    address: str = "127.0.0.1"
    interface: str = "lo"
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contender:
    """A contender. `environment` is added to that of its ranks.

    launcher: "ranks" (variables as torchrun's), "tensorflow" (its TF_CONFIG), "mxnet" (its servers,
      as many as ranks), "horovod gloo", or an MPI: "openmpi", "mpich".
    program: a module of contest.contenders, or a C file there.
    """

    label: str
    launcher: str
    program: str
    environment: Mapping[str, str] = field(default_factory=dict)
    mpirun: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        return self.program.endswith(".c")


def variant(base: str | Contender, label: str, **environment: str) -> Contender:
    """Returns `base` with other settings, as a contender of its own."""
    contender = KNOWN[base] if isinstance(base, str) else base
    return replace(contender, label=label, environment={**contender.environment, **environment})


_NO_WAIT = {"HOROVOD_CYCLE_TIME": "0"}
_BY_MPI = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
# Yields the core between polls; without it, ranks that share few cores block each other.
_BUSY = ("--mca", "mpi_yield_when_idle", "1")

KNOWN: dict[str, Contender] = {
    contender.label: contender
    for contender in (
        Contender("perseus", "ranks", "perseus_torch"),
        Contender("perseus numpy", "ranks", "perseus_numpy"),
        Contender("perseus C", "ranks", "perseus.c"),
        Contender("torch gloo", "ranks", "torch_gloo"),
        Contender("horovod gloo", "horovod gloo", "horovod_torch"),
        Contender("horovod gloo, cycle 0", "horovod gloo", "horovod_torch", _NO_WAIT),
        Contender("horovod mpi", MPI_OF_HOROVOD, "horovod_torch", _BY_MPI),
        Contender(
            "horovod mpi, polling", MPI_OF_HOROVOD, "horovod_torch", {**_BY_MPI, **_NO_WAIT}, _BUSY
        ),
        Contender("open mpi C", "openmpi", "mpi.c"),
        Contender("mpich C", "mpich", "mpi.c"),
        Contender("copy limit", "ranks", "limit.c", {"LIMIT_WAY": "memcpy"}),
        Contender("memory limit", "ranks", "limit.c"),
    )
}


#: The least memory traffic that an allreduce inside a host should, or can, have.
LIMITS = ("copy limit", "memory limit")
#: Reduces gradients as a training script's optimizer does; otherwise the same as `perseus`.
OPTIMIZER = Contender("perseus, as its optimizer", "ranks", "perseus_optimizer")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
#: Contenders that only reduce gradients in TensorFlow's graphs.
IN_GRAPHS = (
    Contender("perseus tensorflow", "ranks", "perseus_tensorflow", _QUIET),
    Contender("horovod tensorflow", "horovod gloo", "horovod_tensorflow", _QUIET),
    Contender("tensorflow multiworker", "tensorflow", "tensorflow_multiworker", _QUIET),
)
#: Contenders that reduce MXNet's arrays.
ON_MXNET = (
    Contender("perseus mxnet", "ranks", "perseus_mxnet"),
    Contender("perseus kvstore", "ranks", "mxnet_kvstore", {"KVSTORE": "dist_sync_perseus"}),
    Contender("mxnet dist_sync", "mxnet", "mxnet_kvstore", {"KVSTORE": "dist_sync"}),
)


@dataclass
class Job:
    """The started processes: ranks or their mpirun, which exit by themselves, and their servers."""

    processes: list[subprocess.Popen[bytes]]
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)


def launch(
    contender: Contender, ranks: int, hosts: Sequence[Host], meeting: Path, log: IO[bytes]
) -> Job:
    """Starts the ranks; `meeting` is the path of the socket that they report to.

    Raises UnavailableError if something that the contender needs is not installed.
    """
    command = _command(contender)
    common = {
        "BENCH_SOCKET": str(meeting),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        **contender.environment,
    }
    if contender.launcher in ("openmpi", "mpich"):
        return Job([_mpirun(contender, command, ranks, hosts, common, meeting.parent, log)])
    if contender.launcher == "horovod gloo":
        return _horovod_gloo(contender, command, ranks, hosts, common, log)
    if contender.launcher == "mxnet":
        return _mxnet_servers(contender, command, ranks, hosts, common, log)
    start = _tensorflow_variables if contender.launcher == "tensorflow" else _torchrun_variables
    variables = start(ranks, hosts)
    return Job(
        [
            _start([*host.prefix, *command], {**common, **mine}, log)
            for host, mine in zip(_place(ranks, hosts), variables, strict=True)
        ]
    )


def _command(contender: Contender) -> list[str]:
    if contender.compiled:
        mpi = contender.launcher if contender.program == "mpi.c" else None
        try:
            return [str(compiled.program(contender.program, mpi))]
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnavailableError(compiled.reason(error)) from error
    if contender.program in PEERS:
        failed = PEERS[contender.program] / "horovod-failed.txt"
        if failed.exists():
            raise UnavailableError(failed.read_text().strip())
        if not (PEERS[contender.program] / "bin/horovodrun").exists():
            raise UnavailableError("Horovod is not there: make peers")
    if not _python(contender).exists():
        raise UnavailableError("MXNet is not there: make peers")
    return [str(_python(contender)), "-m", "contest.worker", contender.program]


def _python(contender: Contender) -> Path:
    """Horovod and MXNet have environments of their own."""
    if contender.program in ENVIRONMENTS:
        return ENVIRONMENTS[contender.program] / "bin/python"
    return Path(sys.executable)


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is the conductor's
        preexec_fn=ending.with_parent,
    )


def _place(ranks: int, hosts: Sequence[Host]) -> list[Host]:
    return [hosts[rank * len(hosts) // ranks] for rank in range(ranks)]


def _free_ports(count: int) -> list[int]:
    """Returns ports that are free here; in other network namespaces this is no worse than a
    guess."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _torchrun_variables(ranks: int, hosts: Sequence[Host]) -> list[dict[str, str]]:
    """Returns the variables that torchrun would set; Perseus and torch.distributed read them."""
    store, rendezvous = _free_ports(2)
    places = _place(ranks, hosts)
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank - places.index(host)),
            "LOCAL_WORLD_SIZE": str(places.count(host)),
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(store),
            "PERSEUS_MASTER_PORT": str(rendezvous),
            "PERSEUS_SECRET": "5ec2e7" * 8,
            "GLOO_SOCKET_IFNAME": host.interface,
        }
        for rank, host in enumerate(places)
    ]


def _tensorflow_variables(ranks: int, hosts: Sequence[Host]) -> list[dict[str, str]]:
    """Returns the variables that MultiWorkerMirroredStrategy reads."""
    places = zip(_place(ranks, hosts), _free_ports(ranks), strict=True)
    cluster = {"worker": [f"{host.address}:{port}" for host, port in places]}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        for rank in range(ranks)
    ]


def _mxnet_servers(
    contender: Contender,
    command: list[str],
    ranks: int,
    hosts: Sequence[Host],
    common: Mapping[str, str],
    log: IO[bytes],
) -> Job:
    """Starts a scheduler and as many servers as ranks beside them, as MXNet's launcher does."""
    (port,) = _free_ports(1)
    meeting = {
        "DMLC_PS_ROOT_URI": hosts[0].address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": str(ranks),
        "DMLC_NUM_WORKER": str(ranks),
    }

    def start(host: Host, role: str, line: Sequence[str]) -> subprocess.Popen[bytes]:
        own = {**common, **meeting, "DMLC_INTERFACE": host.interface, "DMLC_ROLE": role}
        return _start([*host.prefix, *line], own, log)

    serve = [str(_python(contender)), "-W", "ignore", "-c", "import mxnet"]
    places = _place(ranks, hosts)
    servers = [start(hosts[0], "scheduler", serve)]
    servers += [start(host, "server", serve) for host in places]
    return Job([start(host, "worker", command) for host in places], servers)


def _horovod_gloo(
    contender: Contender,
    command: list[str],
    ranks: int,
    hosts: Sequence[Host],
    common: Mapping[str, str],
    log: IO[bytes],
) -> Job:
    """Starts a rendezvous server and sets variables for each rank, as horovodrun does."""
    places = _place(ranks, hosts)
    plan = [(host.address, places.count(host)) for host in dict.fromkeys(places)]
    module = "contest.contenders.horovod_rendezvous"
    arguments = [f"{address}:{slots}" for address, slots in plan]
    server = subprocess.Popen(
        [*hosts[0].prefix, str(_python(contender)), "-m", module, *arguments],
        env={**os.environ, **common},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        preexec_fn=ending.with_parent,
    )
    assert server.stdout
    port = server.stdout.readline().decode().strip()
    addresses = [address for address, _ in plan]
    started = []
    for rank, host in enumerate(places):
        local = rank - places.index(host)
        variables = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(ranks),
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(places.count(host)),
            "HOROVOD_CROSS_RANK": str(addresses.index(host.address)),
            "HOROVOD_CROSS_SIZE": str(sum(slots > local for _, slots in plan)),
            "HOROVOD_HOSTNAME": host.address,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0].address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_IFACE": host.interface,
            # Otherwise a rank that is stopped for this long would count as a silent peer.
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        started.append(_start([*host.prefix, *command], {**common, **variables}, log))
    return Job(started, [server])


def _mpirun(
    contender: Contender,
    command: list[str],
    ranks: int,
    hosts: Sequence[Host],
    common: Mapping[str, str],
    folder: Path,
    log: IO[bytes],
) -> subprocess.Popen[bytes]:
    prefix = ROOT / "build" / contender.launcher
    mpirun = prefix / "bin/mpirun"
    if not mpirun.exists():
        raise UnavailableError(f"{contender.launcher} is not there: make peers")
    places = _place(ranks, hosts)
    slots = ",".join(f"{host.address}:{places.count(host)}" for host in dict.fromkeys(places))
    over_hosts: list[str] = []
    if len(hosts) > 1:
        agent = str(_remote_shell(hosts, folder))
        if contender.launcher == "openmpi":
            over_hosts = ["--host", slots, "--prtemca", "plm_ssh_agent", agent]
            over_hosts += ["--mca", "btl_tcp_if_include", hosts[0].interface]
            # Open MPI cannot know that the hosts share cores, and would take minutes to start.
            over_hosts += _BUSY if ranks > len(os.sched_getaffinity(0)) else []
        else:
            over_hosts = ["-hosts", slots, "-launcher", "ssh", "-launcher-exec", agent]
            over_hosts += ["-iface", hosts[0].interface]
    else:
        # Otherwise both MPIs refuse more ranks than cores, and bind ranks, which no other contender
        # does.
        over_hosts = ["--bind-to", "none"]
        over_hosts += ["--oversubscribe"] if contender.launcher == "openmpi" else []
    variables = {
        **common,
        "LD_LIBRARY_PATH": str(prefix / "lib"),
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    passed_on: list[str] = []
    if contender.launcher == "openmpi":
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        passed_on = [word for name in variables for word in ("-x", name)]
    line = [str(mpirun), "-np", str(ranks), *over_hosts, *contender.mpirun, *passed_on, *command]
    return _start([*hosts[0].prefix, *line], variables, log)


def _remote_shell(hosts: Sequence[Host], folder: Path) -> Path:
    """Makes a program that is called like ssh: [-option...] ADDRESS COMMAND..."""
    cases = "\n".join(
        f'{host.address}) exec {" ".join(host.prefix)} sh -c "$*";;' for host in hosts
    )
    script = folder / "remote_shell"
    script.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
        f'case $host in\n{cases}\n*) echo "no such host: $host" >&2; exit 255;;\nesac\n'
    )
    script.chmod(0o700)
    return script
