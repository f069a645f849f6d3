"""Elastic jobs over several hosts, by ssh: hosts are added, lost, and cannot be reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_programs import ELASTIC
from netlab import NETLAB, netlab
from sshd import PORT, SshHosts

#: Trains until a file appears. Says each world that it is in, and for how many seconds.
TRAINING = (
    ELASTIC
    + """
from pathlib import Path

core.init()
state = ObjectState(broadcast, core.rank, step=0, is_over=False)

def train(state):
    place = core.rank(), core.size(), os.environ["PERSEUS_HOSTNAME"], os.environ["MASTER_ADDR"]
    print("world", *place, flush=True)
    seconds, said = 0, time.monotonic()
    while not state.is_over:
        here = np.array([state.step, Path(sys.argv[1]).exists()], np.int64)
        of_all = core.allreduce(here, core.ReduceOp.SUM, name="step")
        assert of_all[0] == state.step * core.size(), (of_all, state.step, core.size())
        state.step, state.is_over = state.step + 1, bool(of_all[1])
        time.sleep(0.005)
        if time.monotonic() >= said + 1:
            seconds, said = seconds + 1, said + 1
            print("seconds", seconds, flush=True)
        state.commit()

run_fn(train, reset)(state)
print("well", core.size(), flush=True)
core.shutdown()
"""
)


class Job:
    """A job whose hosts are those of a file; it ends when it is told to."""

    def __init__(self, ssh_hosts: SshHosts, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self._stop = folder / "stop"
        self._program = folder / "train.py"
        self._program.write_text(TRAINING)
        self._ssh = ssh_hosts
        self.said = ""

    def start(self, hosts: str, *options: str, **environment: str) -> None:
        self.has_hosts(hosts)
        launcher = [sys.executable, "-m", "perseus.run", "--watch-hostfile", str(self._hosts)]
        launcher += ["--ssh-port", str(PORT), "--ssh-identity-file", str(self._ssh.folder / "key")]
        program = [sys.executable, str(self._program), str(self._stop)]
        self._process = subprocess.Popen(
            [*self._ssh.at_host_0, *launcher, *options, *program],
            env={**self._ssh.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def has_hosts(self, hosts: str) -> None:
        new = self._hosts.with_suffix(".new")
        new.write_text(hosts.replace(",", "\n") + "\n")
        new.replace(self._hosts)

    def waits_for(self, *words: str) -> str:
        """Reads until all of these words have been said since the last call; returns what was."""
        assert self._process.stdout
        said, missing = "", list(words)
        while missing:
            line = self._process.stdout.readline()
            assert line, f"the job has not said {missing}:\n{self.said}"
            said += line
            self.said += line
            missing = [each for each in missing if each not in line]
        return said

    def ends_well(self) -> str:
        self._stop.touch()
        said, _ = self._process.communicate(timeout=60)
        self.said += said
        assert self._process.returncode == 0, self.said
        return self.said

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def job(ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[Job]:
    made = Job(ssh_hosts, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("own", ["a", "localhost"])
def test_a_host_is_added_to_a_job_that_began_on_the_launcher_s(job: Job, own: str) -> None:
    job.start(f"{own}:1", "-np", "1")
    job.waits_for(f"world 0 1 {own}")
    job.has_hosts(f"{own}:1,b:2")
    job.waits_for(f"world 0 3 {own}", "world 1 3 b", "world 2 3 b")
    assert job.ends_well().count("well 3") == 3


def test_each_rank_is_told_where_it_reaches_rank_0_of_its_world(job: Job) -> None:
    job.start("localhost:1,b:2", "-np", "3", "--min-np", "1")
    job.waits_for("world 0 3 localhost 127.0.0.1", "1 3 b 10.86.0.1", "2 3 b 10.86.0.1")
    job.has_hosts("b:2")
    job.waits_for("world 0 2 b 10.86.0.2", "world 1 2 b 10.86.0.2")
    assert job.ends_well().count("well 2") == 2


def test_a_host_whose_processes_are_all_killed_is_left_out(job: Job) -> None:
    job.start("a:1,b:2", "-np", "3", "--min-np", "1")
    job.waits_for("world 0 3 a", "world 1 3 b", "world 2 3 b")
    kill_all_on_host(1)
    said = job.waits_for("world 0 1 a")
    assert "host b is not used for the rest of the job" in said
    assert job.ends_well().count("well 1") == 1


def test_a_host_that_is_preempted_is_drained(job: Job) -> None:
    job.start("a:1,b:2", "-np", "3", "--min-np", "1")
    job.waits_for("world 0 3 a", "world 1 3 b", "world 2 3 b")
    for process, command in processes_on_host(1):
        if not command.startswith(b"sshd"):
            os.kill(process, signal.SIGTERM)
    said = job.waits_for("world 0 1 a")
    assert "perseusrun: the agent on host b got SIGTERM" in said
    assert "go on" not in said and "since worker" not in said  # nothing has failed
    assert job.ends_well().count("well 1") == 1


def kill_all_on_host(host: int) -> None:
    """Kills all processes of a host, as if its power were cut, but for the ssh server."""
    for process, command in processes_on_host(host):
        if b"[listener]" not in command:
            os.kill(process, signal.SIGKILL)


def processes_on_host(host: int) -> list[tuple[int, bytes]]:
    """Returns the number of each process, and its command."""
    listed = subprocess.run(
        ["ip", "netns", "pids", f"{os.environ.get('NETLAB', 'perseus')}{host}"],
        capture_output=True,
        text=True,
        check=True,
    )
    processes = map(int, listed.stdout.split())
    return [(each, Path(f"/proc/{each}/cmdline").read_bytes()) for each in processes]


def test_a_host_that_is_cut_off_is_left_out(job: Job) -> None:
    settings = {"PERSEUS_PEER_TIMEOUT": "2", "PERSEUS_START_TIMEOUT": "5"}
    job.start("a:1,b:2", "-np", "3", "--min-np", "1", **settings)
    job.waits_for("world 0 3 a", "world 1 3 b", "world 2 3 b")
    netlab("unplug", "1")
    try:
        said = job.waits_for("world 0 1 a")
        assert (
            "perseusrun: the connection to host b (ranks 1 and 2) ended: its agent has said nothing"
            " for 10 s; the other 1 go on\n"
            "perseusrun: host b is not used for the rest of the job"
        ) in said
        assert job.ends_well().count("well 1") == 1
    finally:
        netlab("plug", "1")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("10.86.0.3", "ssh: connect to host 10.86.0.3 port 2222: Connection refused"),
        ("no-such-host", "host 'no-such-host' cannot be resolved: "),
    ],
)
@pytest.mark.parametrize("begins", ["with it", "without it"])
def test_a_host_that_cannot_be_reached_is_left_out(
    job: Job, host: str, words: str, begins: str
) -> None:
    job.start(f"a:1,{host}:1" if begins == "with it" else "a:1", "-np", "1")
    if begins == "without it":
        job.waits_for("world 0 1 a")
        job.has_hosts(f"a:1,{host}:1")
    said = job.waits_for(f"host {host} is not used for the rest of the job")
    assert f"perseusrun: no rank could be started on host {host} (rank 1): {words}" in said
    job.has_hosts("a:1,b:1")
    job.waits_for("world 0 2 a", "world 1 2 b")
    assert job.ends_well().count("well 2") == 2


def test_the_start_time_out_does_not_matter_to_a_host_that_has_refused(job: Job) -> None:
    job.start("a:1,10.86.0.3:1", "-np", "1", PERSEUS_START_TIMEOUT="5")
    job.waits_for("host 10.86.0.3 is not used for the rest of the job")
    job.waits_for("seconds 6")
    job.ends_well()


SILENT_SERVER = """
import socket
with socket.create_server(("", 2222)):
    print("listening", flush=True)
    input()
"""


def test_a_host_that_does_not_answer_is_left_out_after_the_start_time_out(job: Job) -> None:
    command = [str(NETLAB), "at", "2", sys.executable, "-c", SILENT_SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout and server.stdout.readline() == "listening\n"
        job.start("a:1,10.86.0.3:1", "-np", "1", PERSEUS_START_TIMEOUT="5")
        said = job.waits_for("host 10.86.0.3 is not used for the rest of the job")
        server.communicate("\n", timeout=20)
    assert "perseusrun: no rank could be started on host 10.86.0.3 (rank 1): " in said
    job.waits_for("seconds 1")
    job.ends_well()


def test_hosts_that_stay_the_same_meet_at_one_address(ssh_hosts: SshHosts) -> None:
    script = """
import os, re, perseus_core as core
core.init()
address, _, port = os.environ["PERSEUS_RENDEZVOUS"].rpartition(":")
listeners = re.findall(r"(\\w{8}):%04X \\w{8}:0000 0A" % int(port), open("/proc/net/tcp").read())
print(core.rank(), core.size(), address, *listeners)
"""
    options = ("-np", "2", "--max-np", "2")
    result = ssh_hosts.run(ssh_hosts.python(script, hosts="localhost:1,b:1", options=options))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:0 2 10.86.0.1 0100560A",  # that address, as /proc has it
        "[1]<stdout>:1 2 10.86.0.1",  # it sees the listeners of its own host
    ]
