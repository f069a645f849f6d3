"""perseusrun over a real ssh: a job on two hosts, its end, and unreachable hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from sshd import SshHosts

SUM = """
import os, sys, numpy, perseus_core
perseus_core.init()
one = numpy.full(3, perseus_core.rank() + 1)
total = perseus_core.allreduce(one, perseus_core.ReduceOp.SUM)
place = perseus_core.rank(), perseus_core.local_rank(), perseus_core.cross_rank()
print(os.environ["PERSEUS_HOSTNAME"], *place, *total, os.environ["WORDS"])
print("warning", file=sys.stderr)
"""

# Says its process id and that of a child that has left its session, and ends by itself only if it
# is the rank that the command line names.
LIVES = """
import os, subprocess, sys, perseus_core
perseus_core.init()
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
perseus_core.barrier()
if sys.argv[1:] == [str(perseus_core.rank())]:
    os._exit(7)
child.wait()
"""


def read_processes(job: subprocess.Popen[str]) -> list[int]:
    assert job.stdout
    lines = [job.stdout.readline() for _ in range(4)]
    return [int(word) for line in lines for word in line.partition(":")[2].split()]


def wait_until_gone(processes: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.01)


def children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_job_over_two_hosts_sums_and_tags_its_output(ssh_hosts: SshHosts) -> None:
    words = "two  words, 'quotes' and $HOME"
    result = ssh_hosts.run(ssh_hosts.python(SUM), WORDS=words)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[0]<stdout>:a 0 0 0 10 10 10 {words}",
        f"[1]<stdout>:a 1 1 0 10 10 10 {words}",
        f"[2]<stdout>:b 2 0 1 10 10 10 {words}",
        f"[3]<stdout>:b 3 1 1 10 10 10 {words}",
    ]
    assert sorted(result.stderr.splitlines()) == [f"[{rank}]<stderr>:warning" for rank in range(4)]


def test_the_secret_is_in_no_command_line(ssh_hosts: SshHosts) -> None:
    script = """
import os, pathlib
secret = os.environ["PERSEUS_SECRET"].encode()
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert secret not in path.read_bytes(), path
    except OSError:
        pass
"""
    result = ssh_hosts.run(ssh_hosts.python(script))
    assert result.returncode == 0, result.stderr


def test_a_failing_rank_ends_the_job_on_both_hosts(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start([*ssh_hosts.python(LIVES), "2"]) as job:
        processes = read_processes(job)
        began = time.monotonic()
        _, errors = job.communicate(timeout=30)
        assert time.monotonic() - began < 5
        assert job.returncode == 7
        assert "perseusrun: rank 2 on host b exited with code 7; ending the other 3\n" in errors
        wait_until_gone(processes, 1)


def test_a_rank_on_another_host_may_save_its_work(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    # The hosts have one file system here.
    script = """
import os, pathlib, signal, sys, time
ready, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
if rank == "0":
    while len(list(ready.iterdir())) < 3:
        time.sleep(0.01)
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
(ready / rank).touch()
while True:
    time.sleep(100)
"""
    saved = [f"[{rank}]<stdout>:saved" for rank in (1, 2, 3)]
    for grace, printed in (("60", saved), ("0", [])):
        ready = tmp_path / grace
        ready.mkdir()
        command = ssh_hosts.python(script, options=("--grace", grace))
        result = ssh_hosts.run([*command, str(ready)])
        assert result.returncode == 7, result.stderr
        assert sorted(result.stdout.splitlines()) == printed


def test_ctrl_c_ends_the_job_on_both_hosts(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(ssh_hosts.python(LIVES)) as job:
        processes = read_processes(job)
        began = time.monotonic()
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
        _, errors = job.communicate(timeout=30)
        assert time.monotonic() - began < 5
        assert job.returncode == 128 + signal.SIGINT
        assert "perseusrun: SIGINT: ending 4 ranks\n" in errors
        wait_until_gone(processes, 1)


def test_a_killed_launcher_leaves_nothing_on_either_host(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(ssh_hosts.python(LIVES)) as job:
        processes = read_processes(job)
        job.kill()
        wait_until_gone(processes, 5)


def test_a_lost_connection_ends_the_job_on_both_hosts(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(ssh_hosts.python(LIVES)) as job:
        processes = read_processes(job)
        to_b = children(job.pid)[1]
        began = time.monotonic()
        os.kill(to_b, signal.SIGTERM)
        _, errors = job.communicate(timeout=30)
        assert time.monotonic() - began < 5
        assert job.returncode == 1
        assert "perseusrun: the connection to host b (ranks 2 and 3) ended: " in errors
        wait_until_gone(processes, 5)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"key": "wrong_key"}, "root@10.86.0.2: Permission denied (publickey"),
        ({"port": 2223}, "ssh: connect to host 10.86.0.2 port 2223: Connection refused"),
    ],
)
def test_a_host_that_cannot_be_had_is_named_in_the_words_of_ssh(
    ssh_hosts: SshHosts, where: dict[str, str | int], words: str
) -> None:
    result = ssh_hosts.run(ssh_hosts.python(LIVES, hosts="b:2", **where))
    assert result.returncode == 1
    assert result.stdout == ""
    start = "perseusrun: no rank could be started on host b (ranks 0 and 1): "
    assert result.stderr.startswith(start + words)


def test_a_host_with_another_key_than_before_is_refused(ssh_hosts: SshHosts) -> None:
    key = (ssh_hosts.folder / "wrong_key.pub").read_text()
    known = ssh_hosts.folder / "other_known_hosts"
    known.write_text(f"[10.86.0.2]:2222 {key}")
    shell = f"ssh -o UserKnownHostsFile={known} -F {ssh_hosts.folder}/ssh_config"
    result = ssh_hosts.run(ssh_hosts.python(LIVES, hosts="b:1"), PERSEUSRUN_RSH=shell)
    assert result.returncode == 1
    assert "no rank could be started on host b (rank 0): " in result.stderr
    assert "Host key verification failed." in result.stderr


def test_an_unknown_host_is_named(ssh_hosts: SshHosts) -> None:
    result = ssh_hosts.run(ssh_hosts.python(LIVES, hosts="a:1,no-such-host:1"))
    assert result.returncode == 2
    assert result.stderr.startswith("perseusrun: host 'no-such-host' cannot be resolved: ")
