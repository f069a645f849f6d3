"""Ranks of elastic jobs leave at the end of a step, as they are asked to, and no step is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_programs import ELASTIC
from socket_path import short

from perseus.run import drain_request

#: Trains until there is a file `enough`. Each process notes the steps that it has completed.
TRAINING = (
    ELASTIC
    + """
import signal, subprocess
from perseus.common.elastic import drain

folder = os.environ["FOLDER"]

def on_sigterm(number, frame):
    leaves = drain()
    print("leaves" if leaves else "is ended", flush=True)
    if not leaves:
        sys.exit(7)

if os.environ.get("OWN_HANDLER"):
    signal.signal(signal.SIGTERM, on_sigterm)
    assert not drain()  # it is no rank yet
core.init()
me = os.environ["PERSEUS_RANK"]
open(os.path.join(folder, f"pid.{me}"), "w").write(str(os.getpid()))
notes = open(os.path.join(folder, f"steps.{me}"), "w", buffering=1)
state = ObjectState(broadcast, core.rank, step=0, value=0.0)

def train(state):
    if os.environ.get("FORKS") and me == "1":  # as a loader of data does
        if os.fork() == 0:
            open(os.path.join(folder, "pid.child"), "w").write(str(os.getpid()))
            time.sleep(60)
            os._exit(3)
    while True:
        ends = os.path.exists(os.path.join(folder, "enough"))
        mine = np.array([state.value + 1, ends], np.float64)
        mean = core.allreduce(mine, op=core.ReduceOp.AVERAGE, name="step")
        state.value, state.step = float(mean[0]), state.step + 1
        if os.path.exists(os.path.join(folder, "hang")) and me == "1":
            open(os.path.join(folder, "hangs"), "w")
            while True:
                time.sleep(60)
        notes.write(f"{state.step} {state.value:g}\\n")
        if mean[1] > 0:
            return
        state.commit()
        time.sleep(0.01)

run_fn(train, reset)(state)
print("well", core.rank(), core.size(), state.step, flush=True)
core.shutdown()
"""
)


#: perseusrun whose agents end ranks one second after SIGTERM.
SHORT_OF_TIME = """
import sys
from perseus.elastic import launcher
from perseus.run import cli
launcher._SECONDS_UNTIL_AGENTS_KILL = -599.0
sys.exit(cli.main())
"""


class Job:
    """A job of three ranks, the first of them on host localhost and the others on 127.0.0.1."""

    def __init__(
        self, folder: Path, *flags: str, hosts: str = "localhost:1\n127.0.0.1:2\n"
    ) -> None:
        self.folder = folder
        (folder / "hosts").write_text(hosts)
        (folder / "train.py").write_text(TRAINING)
        self.environment = {**os.environ, "FOLDER": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        self._flags = flags
        self._stderr = folder / "stderr"

    def start(self, with_launcher: str | None = None, **more: str) -> None:
        launcher = ["-m", "perseus.run"] if with_launcher is None else ["-c", with_launcher]
        command = [sys.executable, *launcher, "-np", "3", "--min-np", "1", "--verbose"]
        command += ["--watch-hostfile", str(self.folder / "hosts"), *self._flags]
        self.start_command([*command, sys.executable, str(self.folder / "train.py")], **more)

    def start_command(self, command: list[str], **more: str) -> None:
        """Runs a command in the job's folder, and waits until three ranks train."""
        with self._stderr.open("w") as stderr, (self.folder / "stdout").open("w") as stdout:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment, **more},
                stdout=stdout,
                stderr=stderr,
            )
        for worker in range(3):
            self.wait_for(lambda worker=worker: len(self.steps(worker)) >= 3)

    def wait_for(self, condition: Callable[[], object], seconds: float = 40) -> None:
        end = time.monotonic() + seconds
        while not condition():
            is_over = self.process.poll() is not None and not condition()
            assert not is_over and time.monotonic() < end, self.stderr + self.stdout
            time.sleep(0.02)

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    def steps(self, worker: int) -> list[int]:
        """The steps that a worker has completed."""
        try:
            text = (self.folder / f"steps.{worker}").read_text()
        except FileNotFoundError:
            return []
        pairs = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        assert all(step == value for step, value in pairs), pairs  # each has counted once
        return [int(step) for step, _ in pairs]

    def pid(self, worker: int | str) -> int:
        return int((self.folder / f"pid.{worker}").read_text())

    def has_left(self, *workers: int) -> bool:
        return all(f"worker {w} on host" in self.exits(w) for w in workers)

    def exits(self, worker: int) -> str:
        lines = [line for line in self.stderr.splitlines() if f": worker {worker} on host" in line]
        return "\n".join(line for line in lines if "exited" in line or "was killed" in line)

    def drain(self, host: str, job: int = 0) -> subprocess.CompletedProcess[str]:
        # Other jobs of this user may run here, too.
        which = str(job or self.process.pid)
        return subprocess.run(
            [sys.executable, "-m", "perseus.run", "--drain", host, "--job", which],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def let_finish(self, *workers: int) -> None:
        """Waits until these have done ten steps more, and for the end of the job."""
        before = {worker: len(self.steps(worker)) for worker in workers}
        self.wait_for(lambda: all(len(self.steps(w)) >= before[w] + 10 for w in workers))
        (self.folder / "enough").touch()
        assert self.process.wait(40) == 0, self.stderr + self.stdout
        for worker in workers:
            steps = self.steps(worker)
            assert steps == list(range(1, len(steps) + 1))  # none is lost, and none repeated
        assert len({len(self.steps(worker)) for worker in workers}) == 1
        assert self.stdout.count("well") == len(workers)

    def check_left(self, *workers: int) -> None:
        """Checks that these have left at the end of the same step, without an error."""
        for worker in workers:
            assert "exited with code 0" in self.exits(worker)
            steps = self.steps(worker)
            assert steps == list(range(1, len(steps) + 1))
        assert len({len(self.steps(worker)) for worker in workers}) == 1
        assert "since worker" not in self.stderr  # no host is kept out for a failure
        assert "go on" not in self.stderr


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = Job(tmp_path, *getattr(request, "param", ()))
    try:
        yield job
    finally:
        with contextlib.suppress(AttributeError):
            if job.process.poll() is None:
                job.process.terminate()
                try:
                    job.process.wait(20)
                except subprocess.TimeoutExpired:
                    job.process.kill()
                    job.process.wait()


def test_a_rank_that_gets_sigterm_finishes_its_step_and_leaves(job: Job) -> None:
    job.start()
    os.kill(job.pid(1), signal.SIGTERM)
    job.wait_for(lambda: job.has_left(1))
    job.check_left(1)
    job.let_finish(0, 2)
    assert "slot 0 of host 127.0.0.1 is drained" in job.stderr


def test_a_program_with_a_handler_of_its_own_asks_to_leave(job: Job) -> None:
    job.start(OWN_HANDLER="1")
    for _ in range(2):
        os.kill(job.pid(1), signal.SIGTERM)
    job.wait_for(lambda: job.has_left(1))
    job.check_left(1)
    job.let_finish(0, 2)
    assert "slot 0 of host 127.0.0.1 is drained" in job.stderr


@pytest.mark.parametrize("job", [("--grace", "60")], indirect=True)
def test_a_program_with_a_handler_of_its_own_learns_that_the_job_ends(job: Job) -> None:
    job.start(OWN_HANDLER="1")
    job.process.terminate()
    assert job.process.wait(30) == 128 + signal.SIGTERM  # long before the grace is over
    assert job.stdout.count("is ended") == 3


def test_where_nobody_lets_a_rank_go_it_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import perseus_core as core\n"
        "from perseus.common.elastic import drain\n"
        "core.init()\n"
        "print(drain())\n"
    )
    command = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.count("False") == 2, result.stderr


def test_a_host_is_drained_from_another_shell(job: Job) -> None:
    job.start()
    done = job.drain("127.0.0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"job {job.process.pid}: host 127.0.0.1 is drained; "
        "workers that finish their step and leave: 1, 2\n"
    )
    job.wait_for(lambda: job.has_left(1, 2))
    job.check_left(1, 2)
    job.let_finish(0)
    assert not list((job.folder / "perseus").iterdir())  # the socket is removed


def test_rank_0_is_drained(job: Job) -> None:
    job.start()
    assert job.drain("localhost").returncode == 0
    job.wait_for(lambda: job.has_left(0))
    job.check_left(0)
    job.let_finish(1, 2)


def test_a_drained_host_is_used_again_once_it_has_been_gone(job: Job) -> None:
    job.start()
    assert job.drain("127.0.0.1").returncode == 0
    job.wait_for(lambda: job.has_left(1, 2))
    # That a drained host which stays in the list is left alone shows test_elastic_driver.py.
    (job.folder / "hosts").write_text("localhost:1\n")
    job.wait_for(lambda: "hosts: localhost:1\n" in job.stderr)
    (job.folder / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    job.wait_for(lambda: "ranks are workers 0, 3" in job.stderr)
    (job.folder / "enough").touch()
    assert job.process.wait(40) == 0
    assert job.stdout.count("well") == 2


def test_the_last_host_is_drained_and_the_job_ends_and_says_why(job: Job) -> None:
    job.start()
    for host in ("127.0.0.1", "localhost"):
        assert job.drain(host).returncode == 0
    assert job.process.wait(40) == 1
    job.check_left(0)
    job.check_left(1, 2)
    assert "no worker is left that has the state of the job's last world" in job.stderr


@pytest.mark.parametrize("job", [("--drain-signal", "SIGUSR1")], indirect=True)
def test_all_leave_on_the_signal_of_the_batch_system(job: Job) -> None:
    job.start()
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(40) == 128 + signal.SIGUSR1
    job.check_left(0, 1, 2)
    assert "the ranks have left, since perseusrun got SIGUSR1" in job.stderr


@pytest.mark.parametrize("job", [("--drain-signal", "SIGUSR2")], indirect=True)
def test_a_rank_leaves_on_the_signal_of_the_batch_system(job: Job) -> None:
    job.start()
    os.kill(job.pid(2), signal.SIGUSR2)
    job.wait_for(lambda: job.has_left(2))
    job.check_left(2)
    job.let_finish(0, 1)


def test_the_batch_script_of_the_docs_passes_the_signal_on_and_requeues(job: Job) -> None:
    page = (Path(__file__).parents[3] / "docs/elastic.md").read_text()
    (script,) = (part for part in page.split("```") if "#SBATCH --signal=B:USR1" in part)
    script = script.removeprefix("bash\n").replace("-np 8 --max-np 8", "-np 3 --max-np 3")
    for name, text in (
        ("perseusrun", f'exec "{sys.executable}" -m perseus.run "$@"'),
        ("python", f'exec "{sys.executable}" "$@"'),
        ("scontrol", f'echo "$@" > {job.folder}/scontrol'),
    ):
        program = job.folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    job.start_command(
        ["bash", "-c", script],
        PATH=f"{job.folder}:{os.environ['PATH']}",
        SLURM_JOB_ID="42",
    )
    job.process.send_signal(signal.SIGUSR1)
    job.process.wait(40)
    assert (job.folder / "scontrol").read_text() == "requeue 42\n", job.stderr
    assert "the ranks have left, since perseusrun got SIGUSR1" in job.stderr


def test_a_second_sigterm_ends_a_rank_as_usual(job: Job) -> None:
    job.start()
    (job.folder / "hang").touch()  # within a step
    job.wait_for((job.folder / "hangs").exists)
    os.kill(job.pid(1), signal.SIGTERM)
    job.wait_for(lambda: "slot 0 of host 127.0.0.1 is drained" in job.stderr)
    (job.folder / "hang").unlink()
    os.kill(job.pid(1), signal.SIGTERM)
    job.wait_for(lambda: job.has_left(1))
    assert "was killed by SIGTERM" in job.exits(1)
    assert "since worker" not in job.stderr  # it was to leave
    job.wait_for(lambda: "ranks are workers 0, 2" in job.stderr)
    (job.folder / "enough").touch()
    assert job.process.wait(40) == 0


@pytest.mark.parametrize("job", [("--elastic-timeout", "5")], indirect=True)
def test_a_rank_that_does_not_come_to_the_end_of_its_step_is_killed(job: Job) -> None:
    job.start()
    (job.folder / "hang").touch()
    job.wait_for((job.folder / "hangs").exists)
    (job.folder / "hang").unlink()
    os.kill(job.pid(1), signal.SIGTERM)
    job.wait_for(lambda: job.has_left(1))
    assert "was killed by SIGKILL" in job.exits(1)
    assert "worker 1 on host 127.0.0.1 has not come to the end of its step within 5 s" in job.stderr
    job.wait_for(lambda: "ranks are workers 0, 2" in job.stderr)
    (job.folder / "enough").touch()
    assert job.process.wait(40) == 0


@pytest.mark.parametrize("job", [("--grace", "60")], indirect=True)
@pytest.mark.parametrize("has_asked", [False, True])
def test_sigterm_to_perseusrun_ends_all_ranks_at_once(job: Job, has_asked: bool) -> None:
    job.start()
    if has_asked:  # and is in the middle of its step
        (job.folder / "hang").touch()
        job.wait_for((job.folder / "hangs").exists)
        os.kill(job.pid(1), signal.SIGTERM)
        job.wait_for(lambda: "slot 0 of host 127.0.0.1 is drained" in job.stderr)
    job.process.terminate()
    assert job.process.wait(30) == 128 + signal.SIGTERM  # long before the grace is over


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("whom", ["the agent", "its guardian", "all of the host"])
def test_sigterm_to_an_agent_drains_its_host(job: Job, whom: str) -> None:
    job.start()
    agent = _parent(job.pid(1))
    assert agent == _parent(job.pid(2))
    guardian = _parent(agent)
    processes = {"the agent": [agent], "its guardian": [guardian]}
    for process in processes.get(whom, [guardian, agent, job.pid(1), job.pid(2)]):
        with contextlib.suppress(ProcessLookupError):  # the ranks may have left by then
            os.kill(process, signal.SIGTERM)
    job.wait_for(lambda: job.has_left(1, 2))
    job.check_left(1, 2)
    job.wait_for(lambda: _has_ended(guardian))
    job.let_finish(0)
    assert "the agent on host 127.0.0.1 got SIGTERM" in job.stderr
    assert "host 127.0.0.1 is drained" in job.stderr


@pytest.mark.parametrize("ends_it", ["a second SIGTERM", "the end of its guardian"])
def test_an_agent_ends_its_ranks_at_once(job: Job, ends_it: str) -> None:
    job.start()
    (job.folder / "hang").touch()  # within a step
    job.wait_for((job.folder / "hangs").exists)
    agent = _parent(job.pid(1))
    os.kill(agent, signal.SIGTERM)
    job.wait_for(lambda: "host 127.0.0.1 is drained" in job.stderr)
    (job.folder / "hang").unlink()
    if ends_it == "a second SIGTERM":
        time.sleep(drain_request._SECONDS_OF_ONE)  # by which the agent knows it from the first
        os.kill(agent, signal.SIGTERM)
    else:
        os.kill(_parent(agent), signal.SIGKILL)
    job.wait_for(lambda: _has_ended(agent))
    job.wait_for(lambda: "ranks are workers 0\n" in job.stderr)
    (job.folder / "enough").touch()
    assert job.process.wait(40) == 0
    assert "since worker" not in job.stderr  # those of the host were to leave


def test_an_agent_ends_ranks_that_its_driver_does_not_end(job: Job) -> None:
    job.start(with_launcher=SHORT_OF_TIME)
    (job.folder / "hang").touch()
    job.wait_for((job.folder / "hangs").exists)
    agent = _parent(job.pid(1))
    job.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(agent, signal.SIGTERM)
        job.wait_for(lambda: _has_ended(job.pid(1)))
    finally:
        job.process.send_signal(signal.SIGCONT)
    job.wait_for(lambda: _has_ended(agent))


def test_a_forked_child_ends_at_sigterm(job: Job) -> None:
    job.start(FORKS="1")
    job.wait_for(lambda: (job.folder / "pid.child").exists() and job.pid("child"))
    child = job.pid("child")
    os.kill(child, signal.SIGTERM)
    job.wait_for(lambda: _has_ended(child))
    job.let_finish(0, 1, 2)
    assert "is drained" not in job.stderr


def _has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_what_cannot_be_drained_is_said_in_a_line(job: Job) -> None:
    none = job.drain("localhost", 1)
    assert none.returncode == 1
    assert none.stderr == "perseusrun: no elastic job 1 of this user runs on this machine\n"
    job.start()
    wrong = job.drain("elsewhere")
    assert wrong.returncode == 1
    assert wrong.stderr.endswith("the job has no host 'elsewhere'; it has localhost, 127.0.0.1\n")
    job.let_finish(0, 1, 2)


def test_a_caller_cannot_hold_up_a_job(job: Job) -> None:
    job.start()
    folder = job.folder / "perseus"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.iterdir()
    assert path.name.startswith(f"{job.process.pid}.")

    def call() -> socket.socket:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(20)
        with short(path) as address:
            caller.connect(address)
        return caller

    with contextlib.ExitStack() as stack:
        for message in (b"nonsense", b"[" * 10000, b'{"says": "drain", "host": 3}', b"x" * 100000):
            caller = stack.enter_context(call())
            caller.send(message)
            caller.recv(65536)
            assert caller.recv(65536) == b""
        silent = stack.enter_context(call())
        assert job.drain("127.0.0.1").returncode == 0
        assert silent.recv(1) == b""  # it is hung up on
    job.wait_for(lambda: job.has_left(1, 2))
    job.let_finish(0)


def test_the_socket_of_a_killed_launcher_is_no_job(job: Job) -> None:
    folder = job.folder / "perseus"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        with short(folder / "1.0.socket") as address:
            dead.bind(address)
    assert "no elastic job" in job.drain("localhost", 1).stderr
    assert not list(folder.iterdir())
