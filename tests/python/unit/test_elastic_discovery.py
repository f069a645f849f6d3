"""Tests where the hosts of an elastic job come from, and the thread that asks for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perseus.elastic import program_output
from perseus.elastic.discovery import Discovery, DiscoveryError, find_first
from perseus.elastic.slurm import SlurmSource, expand_node_list, expand_tasks
from perseus.elastic.sources import FixedSource, HostsFileSource, ScriptSource
from perseus.run.hosts import Host

#: Long enough for what is to happen at once, on a busy machine.
SOON = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def script(folder: Path, *lines: str) -> str:
    file = folder / "discover.sh"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return str(file)


def hanging_script(folder: Path) -> str:
    """A script that starts a process and waits for it; the file `child` has the process's id."""
    return script(
        folder, "sleep 1000 &", f"echo $! > {folder}/new", f"mv {folder}/new {folder}/child", "wait"
    )


def child_of(folder: Path) -> int:
    return int((folder / "child").read_text())


class TestScript:
    def test_the_order_is_the_script_s(self, tmp_path: Path) -> None:
        lines = ["localhost:2", "127.0.0.1:2", "", "# a comment", "  c:3  # fast"]
        source = ScriptSource(script(tmp_path, *(f"echo '{line}'" for line in lines)))
        assert source.find() == [Host("localhost", 2), Host("127.0.0.1", 2), Host("c", 3)]

    def test_a_host_without_slots_has_the_default(self) -> None:
        source = ScriptSource(r"printf 'b\na:1\n'", default_slots=4)
        assert source.find() == [Host("b", 4), Host("a", 1)]

    def test_ipv6_addresses_stand_in_brackets(self) -> None:
        source = ScriptSource(r"printf '[fe80::1]:2\n[::1]\n'", default_slots=4)
        assert source.find() == [Host("fe80::1", 2), Host("::1", 4)]

    def test_no_output_is_no_host(self) -> None:
        assert ScriptSource("true").find() == []

    def test_a_file_need_not_be_on_the_path_nor_have_a_plain_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path(script(tmp_path, "echo a:1")).rename("my hosts; v2")
        assert ScriptSource("my hosts; v2").find() == [Host("a", 1)]

    @pytest.mark.parametrize(
        ("output", "message"),
        [
            (r"a:1\nb", "line 2 of its output: 'b' names no slots; print host:slots, or give --sl"),
            ("a:x", "line 1 of its output: 'a:x' is not of the form host:slots"),
            ("a b", "'a b' is not of the form host:slots"),
            ("a:0", "'a:0': a host needs at least one slot"),
            ("::1:2", "'::1:2' is not of the form host:slots"),
            ("-oProxyCommand=x:1", "is not of the form host:slots"),
            ("-x:1", "'-x' is no name of a host; it must not begin with '-'"),
            (r"a\001:1", r"'a\\x01:1' is not of the form host:slots"),
            (r"a:1\n\na:2", "line 3 of its output: 'a' is named a second time; an elastic job n"),
            (r"a:1\na:1", "line 2 of its output: 'a' is named a second time; an elastic job needs"),
            (r"\377:1", "has printed what is not UTF-8"),
        ],
    )
    def test_nonsense_is_named(self, output: str, message: str) -> None:
        source = ScriptSource(f"printf -- '{output}'")
        with pytest.raises(DiscoveryError, match=message) as error:
            source.find()
        assert str(error.value).startswith("host discovery script ")
        assert "\n" not in str(error.value)

    def test_a_failure_has_the_exit_code_and_the_last_line_of_stderr(self, tmp_path: Path) -> None:
        source = ScriptSource(
            script(
                tmp_path, "echo a:1", "echo begins >&2", "echo no route >&2", "echo >&2", "exit 3"
            )
        )
        with pytest.raises(DiscoveryError, match=r"discover.sh' ended with exit code 3: no route$"):
            source.find()

    def test_a_script_that_kills_itself_is_named_by_the_signal(self) -> None:
        with pytest.raises(DiscoveryError, match=r"' was killed by signal 9$"):
            ScriptSource("kill -9 $$").find()

    def test_a_script_that_cannot_be_run_says_so(self, tmp_path: Path) -> None:
        file = script(tmp_path, "echo a:1")
        os.chmod(file, 0o644)
        for command in (file, str(tmp_path / "missing")):
            # root may not run what has no x bit, either
            with pytest.raises(DiscoveryError, match=r"exit code 12[67]: .*(denied|not found)"):
                ScriptSource(command).find()

    def test_one_that_hangs_is_killed_with_what_it_has_started(self, tmp_path: Path) -> None:
        source = ScriptSource(hanging_script(tmp_path), timeout=0.5)
        with pytest.raises(DiscoveryError, match=r"has not ended in 0.5 s, and has been killed$"):
            source.find()
        wait_until(lambda: not is_alive(child_of(tmp_path)))

    def test_ctrl_c_ends_it_during_the_first_look(self, tmp_path: Path) -> None:
        launcher = [sys.executable, "-m", "perseus.run", "-np", "1"]
        launcher += ["--host-discovery-script", hanging_script(tmp_path), "true"]
        with subprocess.Popen(launcher) as job:
            wait_until((tmp_path / "child").exists)
            job.send_signal(signal.SIGINT)
            assert job.wait(SOON) == 128 + signal.SIGINT
        wait_until(lambda: not is_alive(child_of(tmp_path)))

    def test_a_signal_while_it_is_being_started_ends_it_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = subprocess.Popen

        def started_slowly(*args: Any, **options: Any) -> Any:
            process = start(*args, **options)
            wait_until((tmp_path / "child").exists)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)  # the main thread gets it
            return process

        monkeypatch.setattr(program_output.subprocess, "Popen", started_slowly)
        with pytest.raises(KeyboardInterrupt):
            find_first(ScriptSource(hanging_script(tmp_path)))
        assert not is_alive(child_of(tmp_path))

    def test_what_it_leaves_in_the_background_is_killed(self, tmp_path: Path) -> None:
        lines = ["sleep 1000 &", f"echo $! > {tmp_path}/child", "echo a:1"]
        assert ScriptSource(script(tmp_path, *lines)).find() == [Host("a", 1)]
        wait_until(lambda: not is_alive(child_of(tmp_path)))

    def test_so_is_what_one_leaves_that_fails(self, tmp_path: Path) -> None:
        lines = ["sleep 1000 >/dev/null 2>&1 &", f"echo $! > {tmp_path}/child", "exit 3"]
        with pytest.raises(DiscoveryError, match=r"ended with exit code 3$"):
            ScriptSource(script(tmp_path, *lines)).find()
        wait_until(lambda: not is_alive(child_of(tmp_path)))

    def test_one_that_closes_its_output_is_waited_for(self) -> None:
        with pytest.raises(DiscoveryError, match=r"ended with exit code 4$"):
            ScriptSource("exec >&- 2>&-; sleep 0.2; exit 4").find()

    def test_output_without_end_is_an_error(self) -> None:
        with pytest.raises(DiscoveryError, match="has printed more than 1048576 bytes"):
            ScriptSource("yes").find()

    def test_much_on_stderr_does_no_harm(self) -> None:
        command = "i=0; while [ $i -lt 3000 ]; do echo $i-0123456789012345678901234567890123456789;"
        source = ScriptSource(f"({command} i=$((i+1)); done) >&2; exit 1")
        with pytest.raises(DiscoveryError, match="exit code 1: 2999-0123"):
            source.find()

    def test_it_reads_nothing_from_the_terminal(self) -> None:
        assert ScriptSource("cat; echo a:1").find() == [Host("a", 1)]


class TestFile:
    def test_it_is_read_anew_each_time(self, tmp_path: Path) -> None:
        file = tmp_path / "hosts"
        source = HostsFileSource(file, default_slots=8)
        file.write_text("b slots=2\na:3\nc\n")
        assert source.find() == [Host("b", 2), Host("a", 3), Host("c", 8)]
        file.write_text("a:3\n")
        assert source.find() == [Host("a", 3)]

    def test_it_is_read_when_it_has_not_changed_for_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "hosts"
        file.write_text("host1:2\nho")
        now = file.stat().st_mtime
        waits = []

        def write_the_rest(seconds: float) -> None:
            waits.append(seconds)
            file.write_text("host1:2\nhost2:2\n")
            os.utime(file, (now - 1, now - 1))

        monkeypatch.setattr("perseus.elastic.sources.time.time", lambda: now)
        monkeypatch.setattr("perseus.elastic.sources.time.sleep", write_the_rest)
        assert HostsFileSource(file).find() == [Host("host1", 2), Host("host2", 2)]
        assert waits == [0.05]

    def test_one_that_always_changes_is_read_after_a_second(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "hosts"
        file.write_text("a:1\n")
        now = file.stat().st_mtime
        waits: list[float] = []
        monkeypatch.setattr("perseus.elastic.sources.time.time", lambda: now)
        monkeypatch.setattr("perseus.elastic.sources.time.sleep", waits.append)
        assert HostsFileSource(file).find() == [Host("a", 1)]
        assert sum(waits) == pytest.approx(1)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "No such file"),
            ("a b", "line 1: 'a b'"),
            ("a:1\nb:1\na slots=1", "hosts names 'a' 2 times; an elastic job needs each host once"),
        ],
    )
    def test_a_missing_or_malformed_file_is_an_error(
        self, text: str | None, message: str, tmp_path: Path
    ) -> None:
        if text is not None:
            (tmp_path / "hosts").write_text(text)
        with pytest.raises(DiscoveryError, match=message):
            HostsFileSource(tmp_path / "hosts").find()

    def test_an_empty_file_is_no_host(self, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("# none yet\n")
        assert HostsFileSource(tmp_path / "hosts").find() == []


ALLOCATION = {"SLURM_JOB_NODELIST": "n[1-3],g1", "SLURM_TASKS_PER_NODE": "2(x2),1,4"}
NODES = [Host("n1", 2), Host("n2", 2), Host("n3", 1), Host("g1", 4)]


class TestSlurm:
    @pytest.fixture
    def sinfo(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Installs a sinfo that checks its arguments as far as we know them, and runs a script."""
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

        def install(body: str) -> None:
            file = tmp_path / "sinfo"
            expected = "--noheader --Node --nodes=n[1-3],g1 --format=%N %T"
            file.write_text(f'#!/bin/sh\n[ "$*" = "{expected}" ] || exit 9\n{body}\n')
            file.chmod(0o755)

        return install

    def test_lost_nodes_are_left_out(self, sinfo: Callable[[str], None]) -> None:
        sinfo("printf 'g1 draining@\\nn1 mixed*\\nn2 down*\\nn2 down*\\nn3 drained\\n'")
        assert SlurmSource(ALLOCATION).find() == [Host("n1", 2), Host("g1", 4)]
        sinfo("printf 'g1 failing\\nn1 powered_down~\\nn2 unknown\\nn3 idle\\n'")
        assert SlurmSource(ALLOCATION).find() == [Host("n2", 2), Host("n3", 1)]

    def test_without_sinfo_it_is_the_allocation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        assert SlurmSource(ALLOCATION).find() == NODES
        assert SlurmSource(ALLOCATION, slots=8).find() == [Host(h.name, 8) for h in NODES]
        nodes = {"SLURM_JOB_NODELIST": "n[1-2]"}
        assert SlurmSource(nodes).find() == [Host("n1", 1), Host("n2", 1)]

    def test_a_failing_or_hanging_sinfo_is_an_error(self, sinfo: Callable[[str], None]) -> None:
        sinfo("echo 'slurm_load_node error' >&2; exit 1")
        with pytest.raises(DiscoveryError, match="sinfo ended with exit code 1: slurm_load_node"):
            SlurmSource(ALLOCATION).find()
        sinfo("sleep 1000")
        with pytest.raises(DiscoveryError, match=r"sinfo has not ended in 0.2 s"):
            SlurmSource(ALLOCATION, timeout=0.2).find()

    def test_an_allocation_that_contradicts_itself_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        allocation = {**ALLOCATION, "SLURM_TASKS_PER_NODE": "2(x2)"}
        with pytest.raises(DiscoveryError, match=r"'2\(x2\)', for 2 nodes, .* 4 nodes"):
            SlurmSource(allocation).find()

    def test_a_node_that_is_named_twice_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(DiscoveryError, match="NODELIST, 'n1,n1', names 'n1' 2 times"):
            SlurmSource({"SLURM_JOB_NODELIST": "n1,n1"}).find()

    def test_node_lists_are_expanded(self) -> None:
        assert expand_node_list("n[08-10,7],gpu3") == ["n08", "n09", "n10", "n7", "gpu3"]
        assert expand_node_list("r[0-1]n[1-2]-ib") == ["r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib"]
        assert expand_tasks("2(x3),1") == [2, 2, 2, 1]

    @pytest.mark.parametrize(
        "text", ["", "a,", ",a", "a b", "a[1", "a]", "a[]", "a[x]", "a[2-1]", "a[1-99999999]"]
    )
    def test_malformed_node_lists_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a node list"):
            expand_node_list(text)

    @pytest.mark.parametrize("text", ["", "2,", "x", "2(x)", "2(x99999999)"])
    def test_malformed_lists_of_tasks_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a list of tasks"):
            expand_tasks(text)


class Scripted:
    """A source of given outcomes, the last of which is repeated. It counts the calls."""

    def __init__(self, *outcomes: list[Host] | Exception) -> None:
        self._outcomes = outcomes
        self.asked = 0

    def find(self) -> list[Host]:
        outcome = self._outcomes[min(self.asked, len(self._outcomes) - 1)]
        self.asked += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


A, AB = [Host("a", 2)], [Host("a", 2), Host("b", 1)]


class Recorded:
    """What a discovery has told so far."""

    def __init__(self) -> None:
        self.hosts: list[list[Host]] = []
        self.lines: list[str] = []


@contextlib.contextmanager
def running(source: object, **options: object) -> Iterator[tuple[Discovery, Recorded]]:
    told = Recorded()
    given = {"on_hosts": told.hosts.append, "interval": 0.005, "log": told.lines.append, **options}
    discovery = Discovery(source, **given)  # type: ignore[arg-type]
    discovery.start()
    try:
        yield discovery, told
    finally:
        discovery.stop()


class TestDiscovery:
    def test_only_changes_are_told(self) -> None:
        source = Scripted(A, A, AB, AB, AB, A)
        with running(source) as (discovery, told):
            assert discovery.first(SOON) == A
            wait_until(lambda: source.asked > 10)
        assert told.hosts == [A, AB, A]
        assert told.lines == []

    def test_an_empty_first_list_is_told(self) -> None:
        with running(Scripted([])) as (discovery, told):
            assert discovery.first(SOON) == []
            assert told.hosts == [[]]

    def test_the_hosts_that_are_known_stay_if_none_is_named_any_more(self) -> None:
        source = Scripted([], [], A, [], [], AB, [])
        with running(source) as (_, told):
            wait_until(lambda: source.asked > 8)
        none = "no host is named any more; the hosts known so far stay in use"
        assert told.hosts == [[], A, AB]
        assert told.lines == [none, "hosts can be found out again", none]

    def test_so_do_those_that_were_known_before(self) -> None:
        source = Scripted([], A)
        with running(source, known=AB) as (discovery, told):
            wait_until(lambda: source.asked > 2)
            assert discovery.first(0) == AB
        assert told.hosts == [A]
        assert told.lines[0] == "no host is named any more; the hosts known so far stay in use"

    def test_the_callback_has_had_the_first_list(self) -> None:
        with running(FixedSource(AB)) as (discovery, told):
            discovery.first(SOON)
            assert told.hosts == [AB]

    def test_hosts_that_cannot_be_taken_are_told_again(self) -> None:
        taken: list[list[Host]] = []
        refused: list[list[Host]] = []

        def take(hosts: list[Host]) -> None:
            if hosts == AB and len(refused) < 3:
                refused.append(hosts)
                raise RuntimeError("no room")
            taken.append(hosts)

        with running(FixedSource(AB), on_hosts=take) as (discovery, told):
            with pytest.raises(DiscoveryError, match="raised RuntimeError: no room"):
                discovery.first(SOON)
            wait_until(lambda: bool(taken))
        assert (taken, refused) == ([AB], [AB] * 3)
        assert told.lines == ["hosts can be found out again"]

    def test_a_failing_source_is_reported_once_for_each_error(self) -> None:
        one, two = DiscoveryError("one"), DiscoveryError("two")
        source = Scripted(A, one, one, two, one, two, A, one, AB)
        with running(source) as (_, told):
            wait_until(lambda: source.asked > 10)
        kept = "; the hosts known so far stay in use"
        again = "hosts can be found out again"
        assert told.lines == [f"one{kept}", f"two{kept}", again, f"one{kept}", again]
        assert told.hosts == [A, AB]

    def test_the_first_failure_is_raised(self) -> None:
        with running(Scripted(DiscoveryError("no such host"), A)) as (discovery, told):
            with pytest.raises(DiscoveryError, match=r"^no such host$"):
                discovery.first(SOON)
            wait_until(lambda: told.hosts == [A])
            with pytest.raises(DiscoveryError, match=r"^no such host$"):
                discovery.first(0)
            assert not any("no such host" in line for line in told.lines)

    @pytest.mark.parametrize("kind", [ValueError, RuntimeError])
    def test_any_error_of_a_source_is_one_that_both_callers_expect(
        self, kind: type[Exception]
    ) -> None:
        with running(Scripted(KeyError("hosts"))) as (discovery, _):
            with pytest.raises(kind, match="the source of hosts has raised KeyError: 'hosts'"):
                discovery.first(SOON)

    def test_waiting_for_the_first_list_has_an_end(self, tmp_path: Path) -> None:
        with running(ScriptSource(hanging_script(tmp_path))) as (discovery, _):
            with pytest.raises(DiscoveryError, match=r"no hosts have been found out in 0\.1 s"):
                discovery.first(0.1)

    def test_the_interval_is_asked_for_each_time(self) -> None:
        seconds = [0.0, 0.0, 1000.0]
        source = Scripted(A)
        with running(source, interval=lambda: seconds.pop(0)):
            wait_until(lambda: not seconds)
            assert source.asked == 3

    def test_it_stops_within_a_second_while_the_script_hangs(self, tmp_path: Path) -> None:
        with running(ScriptSource(hanging_script(tmp_path))) as (discovery, told):
            wait_until((tmp_path / "child").exists)
            before = time.monotonic()
            discovery.stop()
            assert time.monotonic() - before < 1
            wait_until(lambda: not is_alive(child_of(tmp_path)))
            with pytest.raises(DiscoveryError, match="has been stopped"):
                discovery.first(SOON)
        assert told.hosts == told.lines == []

    def test_it_stops_within_a_second_if_the_source_cannot_be_told(self) -> None:
        release = threading.Event()

        class Slow:
            def find(self) -> list[Host]:
                release.wait()
                return A

        with running(Slow()) as (discovery, told):
            before = time.monotonic()
            discovery.stop()
            assert time.monotonic() - before < 1
            release.set()
            wait_until(lambda: not discovery._thread.is_alive())
        assert told.hosts == []

    def test_the_callback_may_stop_it(self) -> None:
        source = Scripted(A)
        stopped = threading.Event()

        def stop(_: list[Host]) -> None:
            discovery.stop()
            stopped.set()

        discovery = Discovery(source, stop, interval=0)
        discovery.start()
        assert stopped.wait(SOON)
        wait_until(lambda: not discovery._thread.is_alive())
        assert source.asked == 1
