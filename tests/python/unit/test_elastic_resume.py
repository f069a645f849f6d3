"""A launcher is killed, its ranks train on, and another one takes the job over."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_programs import ELASTIC
from resumable_job import ResumableJob

from perseus.run import job_folder, processes

#: Trains until a file appears; each step is written down. WRITES bytes go to stdout at each step.
TRAINING = (
    ELASTIC
    + """
from pathlib import Path
from perseus_core import driver_link

folder, writes = Path(sys.argv[1]), int(os.environ.get("WRITES", "0"))

core.init()
state = ObjectState(broadcast, core.rank, step=0, is_over=False)

def train(state):
    number = driver_link.link().world.worker
    (folder / f"pid.{number}").write_text(f"{os.getpid()}\\n")
    print("world", number, core.rank(), core.size(), flush=True)
    with open(folder / f"steps.{number}", "a") as steps:
        while not state.is_over:
            here = np.array([state.step, (folder / "enough").exists()], np.int64)
            of_all = core.allreduce(here, core.ReduceOp.SUM, name="step")
            assert of_all[0] == state.step * core.size(), (of_all, state.step, core.size())
            state.step, state.is_over = state.step + 1, bool(of_all[1])
            print(state.step, file=steps, flush=True)
            if writes:
                print("x" * writes, flush=True)
            time.sleep(0.01)
            state.commit()

try:
    run_fn(train, reset)(state)
except SystemExit as end:
    (folder / f"why.{os.getpid()}").write_text(f"{end.code}: {end}")
    raise
print("well", core.size(), flush=True)
core.shutdown()
"""
)


class Job(ResumableJob):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TRAINING)

    def start(self, *options: str, ranks: int = 2, **more: str) -> None:
        flags = ["-np", str(ranks), "--min-np", "1", "--verbose", "--blacklist-by", "slot"]
        program = [sys.executable, str(self.folder / "train.py"), str(self.folder)]
        if not any(option.startswith("--watch") for option in options):
            flags += ["--max-np", str(ranks)]
        self.launch(*flags, *options, *program, **more)
        self.wait_for(lambda: all(len(self.steps(worker)) >= 3 for worker in range(ranks)))

    def kill_launcher(self) -> None:
        self.launchers[-1].kill()
        self.launchers[-1].wait()

    def goes_on(self, *workers: int) -> None:
        """Waits until these have done ten more steps."""
        before = {worker: len(self.steps(worker)) for worker in workers}
        self.wait_for(lambda: all(len(self.steps(w)) >= before[w] + 10 for w in workers))

    def resume(self) -> None:
        self.launch("--resume", str(self.number))
        self.wait_for(lambda: "is taken over" in self.said)

    def ends_well(self, *workers: int) -> None:
        (self.folder / "enough").touch()
        assert self.launchers[-1].wait(40) == 0, self.said
        for worker in workers:
            steps = self.steps(worker)
            assert steps == list(range(steps[0], steps[0] + len(steps)))  # each has counted once
        assert self.said.count("well") == len(workers)
        assert self.is_gone()

    @property
    def number(self) -> int:
        return self.launchers[0].pid

    def steps(self, worker: int) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / f"steps.{worker}").read_text()
            return [int(line) for line in text.splitlines(True) if line.endswith("\n")]
        return []

    def agent(self) -> int:
        return int(processes.about(self.pid(0))[1])

    def is_gone(self) -> bool:
        """Returns whether neither a process nor a file of the job is left."""
        left = list((self.folder / "run").rglob("*"))
        return left in ([], [self.folder / "run" / "perseus"]) and self.have_ended()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    try:
        yield job
    finally:
        job.close()


def test_ranks_train_on_and_another_launcher_replaces_the_next_one_that_is_lost(job: Job) -> None:
    job.start("--blacklist-cooldown-range", "1", "1")
    job.kill_launcher()
    job.goes_on(0, 1)
    assert job.command("--resume").stdout.startswith(f"job {job.number}, begun ")
    job.resume()
    assert "is taken over, with ranks 0 and 1" in job.said
    job.goes_on(0, 1)
    assert "world 0" not in job.said  # nobody has been disturbed
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for(lambda: "ranks are workers 0, 2" in job.said)
    job.goes_on(0, 2)
    job.ends_well(0, 2)


def test_a_rank_is_lost_while_there_is_no_launcher(job: Job) -> None:
    job.start(ranks=3)
    job.kill_launcher()
    job.goes_on(0, 1, 2)
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for(lambda: processes.began(job.pid(1)) is None)
    job.resume()
    job.wait_for(lambda: "ranks are workers 0, 2" in job.said)
    assert "rank 1 on host localhost was killed by SIGKILL" in job.said
    assert "slot 1 of host localhost is not used for the rest of the job" in job.said
    job.goes_on(0, 2)
    job.ends_well(0, 2)


def test_a_job_is_taken_over_twice_and_drained(job: Job) -> None:
    (job.folder / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    logs = job.folder / "logs"
    job.start("--watch-hostfile", str(job.folder / "hosts"), "--output-filename", str(logs))
    for _ in range(2):
        job.kill_launcher()
        job.goes_on(0, 1)
        job.resume()
    done = job.command("--drain", "127.0.0.1", "--job", str(job.number))
    assert done.stdout.endswith("workers that finish their step and leave: 1\n"), done.stderr
    job.wait_for(lambda: "ranks are workers 0\n" in job.said)
    job.goes_on(0)
    job.ends_well(0)
    assert (logs / "rank.000" / "stdout").read_text() == "world 0 0 2\nworld 0 0 1\nwell 1\n"


def test_ranks_end_with_a_launcher_that_is_killed_if_asked(job: Job) -> None:
    job.start("--if-killed", "end")
    job.kill_launcher()
    job.wait_for(job.is_gone)
    done = job.command("--resume", str(job.number))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no elastic job {job.number} of this user goes on here" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_launcher_that_is_asked_to_end_ends_its_ranks(job: Job, number: int) -> None:
    job.start()
    job.launchers[0].send_signal(number)
    assert job.launchers[0].wait(30) == 128 + number
    assert job.is_gone()


def test_ranks_that_finish_by_themselves_leave_nothing(job: Job) -> None:
    (job.folder / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    job.start("--watch-hostfile", str(job.folder / "hosts"))  # two agents
    agent = job.agent()
    job.kill_launcher()
    (job.folder / "enough").touch()
    job.wait_for(job.is_gone)
    job.wait_for(lambda: processes.began(agent) is None)


def test_ranks_that_wait_in_vain_end_with_a_reason(job: Job) -> None:
    output = job.folder / "output"
    job.start("--elastic-timeout", "3", "--output-filename", str(output), ranks=3)
    job.kill_launcher()
    os.kill(job.pid(1), signal.SIGKILL)
    end = job.folder / "run" / "perseus"
    job.wait_for(lambda: [path.suffix for path in end.iterdir()] == [".ended"], 20)
    why = (
        "perseusrun was killed, and within 3 s nobody has taken the job over (perseusrun --resume)"
    )
    said = sorted(path.read_text() for path in job.folder.glob("why.*"))
    assert said == [f"{why}: {why}"] * 2
    for rank in (0, 2):
        assert (output / f"rank.{rank}" / "stderr").read_text().endswith(f"{why}\n")
        assert (output / f"rank.{rank}" / "stdout").read_text().count("world") == 1
    done = job.command("--resume", str(job.number))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"perseusrun: job {job.number} has ended without its perseusrun: ranks 0 and 2 exited with "
        f"code 1: {why}; rank 1 was killed by SIGKILL (Killed)\n"
    )
    assert job.command("--resume").stdout.startswith("no elastic job of this user")


def test_a_job_is_ended(job: Job) -> None:
    job.start()
    job.kill_launcher()
    done = job.command("--end", str(job.number))
    assert (done.returncode, done.stdout) == (0, f"job {job.number} is ended\n"), done.stderr
    assert job.is_gone()


def test_a_launcher_that_is_stopped_keeps_its_job(job: Job) -> None:
    job.start()
    launcher = job.launchers[0].pid
    os.kill(launcher, signal.SIGSTOP)
    done = job.command("--resume", str(job.number))
    assert done.returncode == 1
    assert f"has its perseusrun, process {launcher}, which is stopped: continue it" in done.stderr
    os.kill(launcher, signal.SIGCONT)
    done = job.command("--end", str(job.number))
    assert done.stderr.endswith(f"job {job.number} has its perseusrun, process {launcher}\n")
    job.ends_well(0, 1)


def test_an_agent_that_does_not_answer_counts_as_lost(job: Job) -> None:
    (job.folder / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    job.start("--watch-hostfile", str(job.folder / "hosts"), PERSEUS_START_TIMEOUT="4")
    job.kill_launcher()
    agent = int(processes.about(job.pid(1))[1])
    os.kill(agent, signal.SIGSTOP)
    job.resume()
    assert "host 127.0.0.1 (rank 1) is lost: " in job.said
    assert "is taken over, with rank 0\n" in job.said
    os.kill(agent, signal.SIGKILL)  # and so its rank ends, too
    job.wait_for(lambda: "ranks are workers 0, 2" in job.said)
    job.goes_on(0, 2)
    job.ends_well(0, 2)


def test_an_agent_that_does_not_end_is_named(job: Job) -> None:
    job.start("--grace", "1")
    job.kill_launcher()
    agent = job.agent()
    os.kill(agent, signal.SIGSTOP)
    done = job.command("--end", str(job.number))
    assert done.returncode == 1
    assert f"job {job.number}: host localhost: its agent " in done.stderr
    os.kill(agent, signal.SIGCONT)
    job.wait_for(job.is_gone)  # it has heard it after all


def test_only_one_of_two_launchers_takes_a_job_over(job: Job) -> None:
    job.start()
    job.kill_launcher()
    both = [job.launch("--resume", str(job.number)) for _ in range(2)]
    job.wait_for(lambda: any(launcher.poll() is not None for launcher in both))
    (other,) = (launcher for launcher in both if launcher.poll() is None)
    job.goes_on(0, 1)
    (job.folder / "enough").touch()
    assert other.wait(40) == 0
    assert sorted(launcher.returncode for launcher in both) == [0, 1]
    said = [(job.folder / f"said.{number}").read_text() for number in (1, 2)]
    assert sum("has its perseusrun, process" in each for each in said) == 1
    assert job.is_gone()


def test_output_without_a_reader_holds_nobody_up_and_the_loss_is_told(job: Job) -> None:
    job.start(WRITES="20000")
    job.kill_launcher()
    before = [len(job.steps(worker)) for worker in range(2)]
    job.wait_for(lambda: all(len(job.steps(w)) > before[w] + 60 for w in range(2)))
    job.resume()
    job.wait_for(lambda: "of output is lost, which came while there was no perseusrun" in job.said)
    job.ends_well(0, 1)


def test_an_agent_believes_nobody_who_does_not_know_the_secret(job: Job) -> None:
    job.start()
    job.kill_launcher()
    (path,) = (job.folder / "run/perseus").glob("*.job")
    folder = job_folder.open_job_folder(str(path))
    try:
        (name,) = job_folder.living_agents(folder)
        answer, caller = job_folder.call(folder, name, {"says": "end", "secret": "wrong"})
        caller.close()
        assert answer == {"error": "its agent does not know this secret"}
        assert path.stat().st_mode & 0o777 == 0o700
        assert (path / "state").stat().st_mode & 0o777 == 0o600
    finally:
        os.close(folder)
    job.goes_on(0, 1)
    job.resume()
    job.ends_well(0, 1)


def test_a_variable_with_no_such_choice_is_an_error(job: Job) -> None:
    job.environment["PERSEUSRUN_IF_KILLED"] = "maybe"
    done = job.command("-np", "1", "--max-np", "1", "true")
    assert done.returncode == 2
    assert "PERSEUSRUN_IF_KILLED is 'maybe'; it must be go-on or end" in done.stderr


def test_the_list_is_empty_without_such_a_job(job: Job) -> None:
    done = job.command("--resume")
    # Other jobs of this user may have their folders in the second place.
    assert done.returncode == 0
    assert str(job.folder) not in done.stdout
