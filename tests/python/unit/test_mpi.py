from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from standin_mpirun import OPEN_MPI, write_mpirun

import perseus.run
from perseus.run import mpi_launcher
from perseus.run.host_connection import AgentConnection
from perseus.run.mpi import (
    Mpirun,
    MpirunOptions,
    find_mpirun,
    identify,
    mpirun_command,
    mpirun_environment,
)

MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"

PerseusrunMpi = Callable[..., list[str]]


@pytest.fixture
def with_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PerseusrunMpi:
    """Gives the command line of `perseusrun --mpi ...` under an mpirun that does `body` first."""

    def make(*arguments: str, body: str = "") -> list[str]:
        write_mpirun(tmp_path, body)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return [sys.executable, "-m", "perseus.run", "--mpi", *arguments]

    return make


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **environment}
    return subprocess.run(command, env=whole, capture_output=True, text=True, timeout=60)


def job(**options: object) -> MpirunOptions:
    return MpirunOptions(**{"size": 4, "hosts": [], "exported": {}, **options})  # type: ignore[arg-type]


def command_of(mpirun: Mpirun, **options: object) -> str:
    return " ".join(mpirun_command(mpirun, job(**options), ["python", "t.py"]))


def test_the_two_families_are_told_apart() -> None:
    assert identify("/m", OPEN_MPI) == Mpirun("/m", "Open MPI", 5)
    assert identify("/m", MPICH) == Mpirun("/m", "MPICH", 5)


def test_an_unknown_mpirun_is_quoted() -> None:
    with pytest.raises(ValueError, match=r"/m is neither .* its version is 'mpirun \(Foo\) 1'"):
        identify("/m", "mpirun (Foo) 1\nmore")


def test_no_mpirun_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="there is no mpirun on the path"):
        find_mpirun()


@pytest.mark.parametrize(("major", "launcher"), [(4, "plm_rsh"), (5, "plm_ssh")])
def test_open_mpi_command(major: int, launcher: str) -> None:
    assert command_of(
        Mpirun("mpirun", "Open MPI", major),
        hosts=[("a", 2), ("b", 2)],
        exported={"B": "secret", "A": "1"},
        remote_shell=["ssh", "-p", "2222"],
    ) == (
        "mpirun -np 4 -H a:2,b:2 --bind-to none --map-by slot "
        f"--mca {launcher}_agent ssh --mca {launcher}_args -p 2222 -x A -x B python t.py"
    )


def test_mpich_command() -> None:
    mpirun = Mpirun("mpirun", "MPICH", 5)
    options = {"remote_shell": ["ssh", "-p", "2222"], "more": ["-rmk", "user"]}
    assert command_of(
        mpirun, hosts=[("a", 2), ("b", 2)], exported={"B": "2", "A": "1"}, **options
    ) == (
        "mpirun -n 4 -hosts a:2,b:2 -launcher ssh -launcher-exec ssh -bind-to none "
        "-genvlist A,B,HYDRA_LAUNCHER_EXTRA_ARGS,PERSEUSRUN_LAST -rmk user python t.py"
    )
    assert mpirun_environment(mpirun, job(**options))["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-p 2222"


def test_binding_arguments_replace_ours() -> None:
    command = command_of(Mpirun("mpirun", "Open MPI", 5), binding=["--bind-to", "core"])
    assert "--bind-to core" in command
    assert "none" not in command


def test_tcp_only_is_said_to_either() -> None:
    open_mpi, mpich = Mpirun("mpirun", "Open MPI", 5), Mpirun("mpirun", "MPICH", 5)
    assert "--mca btl ^openib" in command_of(open_mpi, tcp=True)
    assert "FI_PROVIDER" in command_of(mpich, tcp=True)
    assert mpirun_environment(mpich, job(tcp=True))["FI_PROVIDER"] == "tcp"


def test_interfaces_are_said_to_either() -> None:
    open_mpi, mpich = Mpirun("mpirun", "Open MPI", 5), Mpirun("mpirun", "MPICH", 5)
    interfaces = ["eth0", "eth1"]
    assert "--mca btl_tcp_if_include eth0,eth1" in command_of(open_mpi, interfaces=interfaces)
    assert "-iface eth0 " in command_of(mpich, interfaces=interfaces)


def test_ranks_get_settings_and_mpiruns_variables(with_mpirun: PerseusrunMpi) -> None:
    script = """
import os
print(os.environ["OMPI_COMM_WORLD_RANK"], os.environ["PERSEUS_LOG_LEVEL"], os.environ["WORDS"])
assert not [name for name in os.environ if name.startswith("PERSEUSRUN_CALL")]
"""
    options = ["-np", "2", "--log-level", "info"]
    result = run(with_mpirun(*options, sys.executable, "-c", script), WORDS="two words")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:0 info two words",
        "[1]<stdout>:1 info two words",
    ]


def test_ranks_learn_their_place_for_torch_distributed(with_mpirun: PerseusrunMpi) -> None:
    script = """
import os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR".split()
print(*[os.environ[name] for name in names])
if os.environ["RANK"] == "0":
    socket.create_server(("", int(os.environ["MASTER_PORT"])))
"""
    result = run(with_mpirun("-np", "2", sys.executable, "-c", script))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:0 2 0 2 127.0.0.1",
        "[1]<stdout>:1 2 1 2 127.0.0.1",
    ]


def test_a_function_runs_under_mpirun(with_mpirun: PerseusrunMpi) -> None:
    with_mpirun()  # from now on the mpirun on the path

    def rank() -> str:
        return os.environ["OMPI_COMM_WORLD_RANK"]

    assert perseus.run.run(rank, num_proc=2, use_mpi=True) == ["0", "1"]


def test_an_old_kernel_is_enough(with_mpirun: PerseusrunMpi, tmp_path: Path) -> None:
    """One without pidfd_open and memfd_create, which is how Python shows that they are missing."""
    (tmp_path / "sitecustomize.py").write_text("import os; del os.pidfd_open, os.memfd_create")
    done = run(with_mpirun("-np", "2", "echo", "hello"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]


def test_lines_that_come_in_pieces_are_tagged_once(
    with_mpirun: PerseusrunMpi, tmp_path: Path
) -> None:
    script = """
import sys
for i in range(3000):
    for piece in ("line ", str(i), chr(10)):
        sys.stdout.write(piece)
        sys.stdout.flush()
"""
    options = ["-np", "2", "--output-filename", str(tmp_path / "logs")]
    result = run(with_mpirun(*options, sys.executable, "-c", script))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[{rank}]<stdout>:")]
        assert mine == [f"[{rank}]<stdout>:line {i}" for i in range(3000)]
    assert len(lines) == 6000
    assert (tmp_path / "logs/rank.1/stdout").read_text().endswith("line 2999\n")


def test_a_failing_rank_is_named(with_mpirun: PerseusrunMpi) -> None:
    script = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os._exit(3)
time.sleep(1000)
"""
    began = time.monotonic()
    result = run(with_mpirun("-np", "3", sys.executable, "-c", script))
    assert result.returncode == 3
    assert time.monotonic() - began < 6
    assert "perseusrun: rank 1 on host " in result.stderr
    assert " exited with code 3; ending the other 2" in result.stderr


def test_an_mpirun_that_ends_before_it_has_begun_is_an_error(with_mpirun: PerseusrunMpi) -> None:
    result = run(with_mpirun("-np", "2", "true", body="sys.exit('no such network')"))
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "no such network",
        "perseusrun: mpirun exited with code 1 before it had started ranks 0 and 1",
    ]


def test_a_rank_that_mpirun_does_not_start_is_given_up(with_mpirun: PerseusrunMpi) -> None:
    command = with_mpirun(
        *["-np", "2", "--start-timeout", "1", "sleep", "1000"],
        body="del environments[1]",
    )
    result = run(command)
    assert result.returncode == 1
    assert "within the start time-out of 1 s mpirun has not started rank 1" in result.stderr


def test_an_agent_without_the_key_is_not_heard(with_mpirun: PerseusrunMpi) -> None:
    command = with_mpirun(
        *["-np", "2", "--start-timeout", "1", "sleep", "1000"],
        body="call = environments[1]['PERSEUSRUN_CALL_BACK'].split()\n"
        "environments[1]['PERSEUSRUN_CALL_BACK'] = ' '.join([*call[:2], '00' * 32])",
    )
    result = run(command)
    assert result.returncode == 1
    assert "has not started rank 1" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_launcher_leaves_nothing_behind(
    with_mpirun: PerseusrunMpi, number: signal.Signals
) -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    with subprocess.Popen(
        with_mpirun("-np", "2", sys.executable, "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout
        ranks = [int(launcher.stdout.readline().partition(":")[2]) for _ in range(2)]
        launcher.send_signal(number)
        deadline = time.monotonic() + 5
        while left := [rank for rank in ranks if Path(f"/proc/{rank}").exists()]:
            assert time.monotonic() < deadline, f"processes {left} are left"
            time.sleep(0.01)
        launcher.communicate(timeout=10)
        assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number)


# Before mpirun starts anything, more strangers call the launcher than it has descriptors.
CROWD = """
import resource, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, port, _ = os.environ["PERSEUSRUN_CALL_BACK"].split()
strangers = [socket.create_connection((host, int(port))) for _ in range(400)]
"""


def test_silent_strangers_keep_no_job_from_starting(with_mpirun: PerseusrunMpi) -> None:
    command = with_mpirun("-np", "2", sys.executable, "-c", "print('well')", body=CROWD)
    result = run(["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command])
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:well", "[1]<stdout>:well"]


def test_a_secret_of_the_user_reaches_the_ranks_and_is_not_sent_to_agents(
    with_mpirun: PerseusrunMpi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_mpirun()  # from now on the mpirun on the path
    sent = []

    def connect(*arguments: object) -> AgentConnection:
        sent.append(json.dumps(arguments[4]))
        return AgentConnection(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mpi_launcher, "AgentConnection", connect)

    def secret() -> str:
        return os.environ["PERSEUS_SECRET"]

    value = "0123456789abcdef" * 4
    environment = {"PERSEUS_SECRET": value}
    assert perseus.run.run(secret, num_proc=2, use_mpi=True, environment=environment) == [value] * 2
    assert len(sent) == 2
    assert not [text for text in sent if value in text]
