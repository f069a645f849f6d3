"""A launcher is killed, with ranks on hosts that ssh reaches; another takes the job over."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from netlab import netlab
from resumable_job import ResumableJob
from sshd import PORT, SshHosts
from test_elastic import TRAINING

from perseus.run import processes

#: Also writes down which process each worker is, and its steps.
PROGRAM = TRAINING.replace(
    "    place =",
    """    from perseus_core import driver_link
    folder, own = Path(sys.argv[1]).parent, driver_link.link().world.worker
    (folder / f"pid.{own}").write_text(f"{os.getpid()}\\n")
    place =""",
).replace(
    "        time.sleep(0.005)",
    """        (folder / f"step.{own}").write_text(f"{state.step}")
        time.sleep(0.005)""",
)


class Job(ResumableJob):
    def __init__(self, ssh_hosts: SshHosts, folder: Path) -> None:
        super().__init__(folder, PROGRAM, ssh_hosts.environment, ssh_hosts.at_host_0)
        self._ssh = ssh_hosts
        self.number = 0

    def start(self, hosts: str, *options: str, **settings: str) -> None:
        self.environment |= settings
        (self.folder / "hosts").write_text(hosts.replace(",", "\n") + "\n")
        ssh = ["--ssh-port", str(PORT), "--ssh-identity-file", str(self._ssh.folder / "key")]
        flags = ["--watch-hostfile", str(self.folder / "hosts"), "--min-np", "1", "--verbose"]
        program = [sys.executable, str(self.folder / "train.py"), str(self.folder / "stop")]
        self.launch(*flags, *ssh, *options, *program)

    def kill_launcher(self) -> None:
        os.kill(self.launcher, signal.SIGKILL)
        self.launchers[-1].wait(20)

    def says(self, *words: str) -> None:
        self.wait_for(lambda: all(word in self.said for word in words))

    def train_on(self, *workers: int) -> None:
        for worker in workers:
            before = self.step(worker)
            self.wait_for(lambda worker=worker, before=before: self.step(worker) > before + 10)

    def step(self, worker: int) -> int:
        return int((self.folder / f"step.{worker}").read_text() or "0")

    @property
    def launcher(self) -> int:
        (folder,) = (self.folder / "run/perseus").glob("*.job")
        self.number = self.number or int(folder.name.partition(".")[0])
        return int((folder / "lock").read_text())

    def ends_well(self, ranks: int) -> None:
        (self.folder / "stop").touch()
        assert self.launchers[-1].wait(60) == 0, self.said
        assert self.said.count(f"well {ranks}") == ranks
        self.is_gone()

    def is_gone(self) -> None:
        """Waits until neither a process nor a file of the job is left."""
        self.wait_for(self.have_ended)
        place = Path(f"/tmp/perseus-{os.geteuid()}")
        self.wait_for(lambda: not list(place.glob(f"{self.number}.*.agents")))


@pytest.fixture
def job(ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[Job]:
    made = Job(ssh_hosts, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("own", ["a", "localhost"])
def test_ranks_on_all_hosts_train_on_and_the_next_loss_is_handled(job: Job, own: str) -> None:
    job.start(f"{own}:1,b:2", "-np", "3", "--blacklist-by", "slot")
    job.says(f"world 0 3 {own}", "world 1 3 b", "world 2 3 b", "seconds 1")
    job.kill_launcher()
    job.train_on(0, 1, 2)
    job.launch("--resume", str(job.number))
    job.says("is taken over, with ranks 0, 1 and 2")
    job.train_on(0, 1, 2)
    assert "world 0" not in job.said  # nobody has been disturbed
    os.kill(job.pid(2), signal.SIGKILL)
    job.says("rank 2 on host b was killed by SIGKILL", f"world 0 2 {own}", "world 1 2 b")
    job.ends_well(2)


def test_ranks_on_another_host_end_when_nobody_takes_them_over(job: Job) -> None:
    job.start("b:2", "-np", "2", "--elastic-timeout", "4")
    job.says("world 0 2 b", "world 1 2 b", "seconds 1")
    job.kill_launcher()
    job.train_on(0, 1)
    job.is_gone()


@pytest.mark.parametrize("if_killed", ["go-on", "end"])
def test_ranks_on_another_host_end_when_the_launcher_s_machine_fails(
    job: Job, if_killed: str
) -> None:
    options = ("-np", "2", "--elastic-timeout", "4", "--if-killed", if_killed)
    job.start("b:2", *options, PERSEUS_PEER_TIMEOUT="2")
    job.says("world 0 2 b", "world 1 2 b", "seconds 1")
    netlab("unplug", "0")  # it can close no connection, as if its power were cut
    try:
        job.train_on(0, 1)
        job.is_gone()  # after 10 s, in which it says nothing, and 4 s
    finally:
        netlab("plug", "0")


def test_ranks_on_another_host_are_ended(job: Job) -> None:
    job.start("localhost:1,b:1", "-np", "2")
    job.says("world 0 2 localhost", "world 1 2 b", "seconds 1")
    job.kill_launcher()
    job.train_on(0, 1)
    done = job.command("--end", str(job.number))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"job {job.number} is ended\n"
    job.is_gone()
    assert not list((job.folder / "run/perseus").iterdir())


def test_an_agent_that_has_lost_its_connection_alone_is_ended(job: Job) -> None:
    job.start("localhost:1,b:2", "-np", "3")
    job.says("world 0 3 localhost", "world 1 3 b", "world 2 3 b")
    ends = [job.pid(worker) for worker in (1, 2)]
    for child in processes.children()[job.launcher]:
        if b"ssh" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
    job.says("the connection to host b (ranks 1 and 2) ended", "world 0 1 localhost")
    job.wait_for(lambda: not any(map(processes.began, ends)))
    job.ends_well(1)


def test_ranks_on_a_host_that_was_cut_off_make_room_for_new_ones(job: Job) -> None:
    settings = {"PERSEUS_PEER_TIMEOUT": "2", "PERSEUS_START_TIMEOUT": "5"}
    options = ("-np", "2", "--blacklist-cooldown-range", "1", "2")
    job.start("localhost:1,b:1", *options, **settings)
    job.says("world 0 2 localhost", "world 1 2 b")
    old = job.pid(1)
    netlab("unplug", "1")
    try:
        job.says(
            "host b (rank 1) ended: its agent has said nothing for 10 s", "world 0 1 localhost"
        )
        job.says("no rank could be started on host b")  # nor could anybody be told to end there
        assert processes.began(old) is not None
    finally:
        netlab("plug", "1")
    job.wait_for(lambda: job.said.count("world 0 2 localhost") == 2)
    job.wait_for(lambda: processes.began(old) is None)
    job.ends_well(2)
