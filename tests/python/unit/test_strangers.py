"""Tests that callers without the secret are ignored, and that ports open only where asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunRanks, all_well

#: Finds where this process listens: pairs of an address and a port, in hexadecimal digits.
LISTENING = """
import os, pathlib, numpy
import perseus_core as core

def listening(*tables):
    mine = set()
    for link in pathlib.Path("/proc/self/fd").iterdir():
        try: mine.add(os.readlink(link))
        except OSError: pass
    for table in tables:
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                yield words[1].split(":")

core.init()
"""
LISTENERS = f"""
{LISTENING}
core.allreduce(numpy.ones(4), name="x")
found = {{address for address, _ in listening("tcp", "tcp6")}}
print("listens on", *sorted(found), flush=True)
core.barrier()
"""
LOOPBACK, LOOPBACK_6 = "0100007F", "0" * 24 + "01000000"


def test_listeners_are_on_the_interfaces_asked_for(run_ranks: RunRanks) -> None:
    settings = {"PERSEUS_TRANSPORT": "tcp", "PERSEUS_INTERFACES": "lo"}
    result = run_ranks(2, LISTENERS, environment={**os.environ, **settings})
    assert result.returncode == 0, result.stderr
    found = re.findall(r"listens on (.*)", result.stdout)
    assert len(found) == 2
    assert set(" ".join(found).split()) <= {LOOPBACK, LOOPBACK_6}
    assert all(LOOPBACK in one for one in found)


def test_inside_a_host_nobody_listens_to_the_network(run_ranks: RunRanks) -> None:
    for transport, expected in (("auto", {""}), ("tcp", {LOOPBACK, f"{LOOPBACK_6} {LOOPBACK}"})):
        environment = {**os.environ, "PERSEUS_TRANSPORT": transport}
        result = run_ranks(2, LISTENERS, environment=environment)
        assert result.returncode == 0, result.stderr
        assert set(re.findall(r"listens on ?(.*)", result.stdout)) <= expected


#: Rank 1 has come with a secret of its own.
WRONG = """
import os, numpy
if os.environ["PERSEUS_RANK"] == "1":
    os.environ["PERSEUS_SECRET"] = "ab" * 32
import perseus_core as core
try:
    core.init()
except core.HorovodInternalError as error:
    print("refused:", error, flush=True)
except ValueError as error:
    print("refused:", error, flush=True)
"""


def test_a_peer_with_another_secret_is_refused_and_says_why(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "PERSEUS_START_TIMEOUT": "3"}
    result = run_ranks(2, WRONG, environment=environment)
    refused = sorted(line for line in result.stdout.splitlines() if "refused" in line)
    assert len(refused) == 2, result.stdout + result.stderr
    assert "rank 1 on localhost" in refused[0]
    assert "the secret is not this job's" in refused[1]


def test_secrets_differ_from_job_to_job(run_ranks: RunRanks) -> None:
    script = "import os; print('secret', os.environ['PERSEUS_SECRET'], flush=True)"
    seen = [set(re.findall(r"secret (\w+)", run_ranks(2, script).stdout)) for _ in range(2)]
    assert [len(secrets) for secrets in seen] == [1, 1]
    assert seen[0] != seen[1]
    assert all(len(secret) == 64 for secrets in seen for secret in secrets)


def test_a_command_line_shows_no_secret(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import contextlib, os, pathlib\n"
        "secret = os.environ['PERSEUS_SECRET'].encode()\n"
        "shown = []\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    with contextlib.suppress(OSError):  # the process has ended meanwhile\n"
        "        if secret in path.read_bytes():\n"
        "            shown.append(path)\n"
        "print('shown', shown, flush=True)\n"
    )
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, str(program)]
    result = subprocess.run(launcher, capture_output=True, text=True, timeout=60)
    assert result.stdout.count("shown []") == 2, result.stdout + result.stderr


CROWD = f"""
{LISTENING}
import secrets, socket, threading
ports = [int(port, 16) for _, port in listening("tcp")]
assert ports
held = []

def crowd():
    for i in range(500):
        one = socket.socket()
        one.settimeout(1)
        try:
            one.connect(("127.0.0.1", ports[i % len(ports)]))
            if i % 2: one.send(secrets.token_bytes(1 + i % 300))
            held.append(one)
        except OSError:
            pass

thread = threading.Thread(target=crowd)
thread.start()
for step in range(60):
    total = core.allreduce(numpy.full(50_000, core.rank() + 1.0), core.ReduceOp.SUM, name="g")
    assert (total == core.size() * (core.size() + 1) / 2).all()
thread.join()
core.barrier()
assert len(os.listdir("/proc/self/fd")) < 900
print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_crowd_of_strangers_changes_no_result(run_ranks: RunRanks, ranks: int) -> None:
    environment = {**os.environ, "PERSEUS_TRANSPORT": "tcp"}
    all_well(run_ranks(ranks, CROWD, environment=environment), ranks)


#: Rank 1 holds 400 connections without a word to rank 0, which may have 256 descriptors.
HOLDS = f"""
import resource
if os.environ["PERSEUS_RANK"] == "0": resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
{LISTENING}
import socket, time
ports = [int(port, 16) for address, port in listening("tcp") if address == "0100007F"]
port = int(core.broadcast(numpy.array(ports[0]), 0, name="port"))
held = []
most = 0
for _ in range(20):
    for _ in range(20 * core.rank()):
        held.append(socket.create_connection(("127.0.0.1", port)))
    assert core.allreduce(numpy.ones(1000), core.ReduceOp.SUM, name="x")[0] == 2
    if core.rank() == 0:
        for _ in range(20):
            with open("/dev/null"): pass
            most = max(most, len(os.listdir("/proc/self/fd")))
            time.sleep(0.005)
print("rank", core.rank(), "had", most, flush=True)
"""


def test_strangers_leave_the_script_its_descriptors(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "PERSEUS_TRANSPORT": "tcp"}
    result = run_ranks(2, "import os\n" + HOLDS, environment=environment)
    assert result.returncode == 0, result.stderr
    found = re.search(r"rank 0 had (\d+)", result.stdout)
    assert found
    # An eighth of 256, and the rank's own.
    assert 32 <= int(found[1]) < 100, result.stdout
