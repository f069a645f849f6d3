from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from perseus.run import remote_shell, rendezvous
from perseus.run.environment import start_timeout
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import call_back_address, own_addresses, serve_rendezvous

RSH = "PERSEUSRUN_RSH"


def test_ssh_is_told_port_and_key_and_asks_nobody() -> None:
    command = RemoteShell(2222, "my key").wrap("node1", ["python", "a b.py"], 7)
    assert command[0] == "ssh"
    assert command[-2:] == ["node1", "exec python 'a b.py'"]
    assert command[-3] == "--"  # what follows is no option
    pairs = list(zip(command[1:-3:2], command[2:-3:2], strict=True))
    assert ("-p", "2222") in pairs
    assert ("-i", "my key") in pairs
    assert ("-o", "BatchMode=yes") in pairs
    assert ("-o", "ConnectTimeout=7") in pairs


def test_options_that_the_user_gives_ssh_come_before_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RSH, "/opt/bin/ssh -o 'StrictHostKeyChecking yes'")
    command = RemoteShell.from_environment(22, None).wrap("node1", ["true"], 30)
    assert command[:3] == ["/opt/bin/ssh", "-o", "StrictHostKeyChecking yes"]
    assert command.index("StrictHostKeyChecking=accept-new") > 3
    assert command[-5:] == ["-p", "22", "--", "node1", "exec true"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="the program ssh is missing")
@pytest.mark.parametrize(("configured", "accepts"), [("ask", True), ("yes", False), ("no", False)])
def test_whoever_wants_ssh_to_be_strict_is_not_overruled(
    tmp_path: Path, configured: str, accepts: bool
) -> None:
    (tmp_path / "config").write_text(f"Host big-one\n  StrictHostKeyChecking {configured}\n")
    shell = RemoteShell(command=["ssh", "-F", str(tmp_path / "config")])
    command = shell.wrap("big-one", ["true"], 30)
    assert ("StrictHostKeyChecking=accept-new" in command) == accepts


@pytest.mark.skipif(shutil.which("ssh") is None, reason="the program ssh is missing")
def test_a_configuration_of_ssh_that_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text('Match exec "exec sleep 20"\n  Port 3\n')
    monkeypatch.setattr(remote_shell, "_SECONDS_TO_CONFIGURE", 0.2)
    with pytest.raises(ValueError, match=r"within 0.2 s how it is configured for host 'big-one'"):
        RemoteShell(command=["ssh", "-F", str(config)]).wrap("big-one", ["true"], 30)


def test_another_remote_shell_is_called_with_host_and_line_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RSH, "kubectl-exec --quiet")
    shell = RemoteShell.from_environment(None, None)
    assert shell.wrap("pod1", ["true"], 30) == ["kubectl-exec", "--quiet", "pod1", "exec true"]


def test_a_port_for_a_remote_shell_that_is_not_ssh_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RSH, "kubectl-exec")
    with pytest.raises(ValueError, match="a port and an identity file are for ssh; 'kubectl-exec'"):
        RemoteShell.from_environment(22, None)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="the program ssh is missing")
def test_a_name_that_only_ssh_knows_is_looked_up_there(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host big-one\n  HostName 192.0.2.7\n")
    shell = RemoteShell(command=["ssh", "-F", str(tmp_path / "config")])
    assert shell.name_on_network("big-one") == "192.0.2.7"
    assert shell.name_on_network("another") == "another"


def test_without_ssh_a_name_stands_for_itself() -> None:
    assert RemoteShell(command=["/nowhere/ssh"]).name_on_network("node1") == "node1"


def test_the_interface_that_the_ranks_are_given_is_the_one_they_are_called_over() -> None:
    shell = RemoteShell(command=["no-shell"])
    for variable in ("PERSEUS_INTERFACES", "HOROVOD_GLOO_IFACE"):
        addresses = own_addresses(["192.0.2.1"], {variable: "no0, lo"}, shell)
        with serve_rendezvous(["localhost"], "5ec4e7", addresses) as rendezvous:
            assert rendezvous.seen_from("192.0.2.1").startswith("127.0.0.1:")


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Maps other hosts to the address by which each of them reaches this one."""
    routes: dict[str, str] = {}
    monkeypatch.setattr(rendezvous, "address_toward", routes.__getitem__)
    monkeypatch.setattr(rendezvous, "is_local", lambda host: host not in routes)
    return routes


def test_the_rendezvous_listens_on_the_one_address_that_all_hosts_reach(
    routes: dict[str, str],
) -> None:
    routes |= {"a": "127.0.0.2", "b": "127.0.0.2"}
    addresses = own_addresses([*routes, "localhost"], {}, RemoteShell(command=["no-shell"]))
    with serve_rendezvous(["localhost"] * 3, "5ec4e7", addresses) as rendezvous:
        places = {rendezvous.seen_from(host) for host in addresses}
        assert len(places) == 1
        address, _, port = places.pop().rpartition(":")
        assert address == "127.0.0.2"
        socket.create_connection((address, int(port)), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=5)


def test_the_rendezvous_is_reached_by_hosts_in_several_networks(routes: dict[str, str]) -> None:
    routes |= {"a": "127.0.0.2", "b": "127.0.0.3"}
    addresses = own_addresses([*routes, "localhost"], {}, RemoteShell(command=["no-shell"]))
    with serve_rendezvous(["localhost"] * 3, "5ec4e7", addresses) as rendezvous:
        for host, seen_as in {**routes, "localhost": "127.0.0.1"}.items():
            address, _, port = rendezvous.seen_from(host).rpartition(":")
            assert address == seen_as
            socket.create_connection((address, int(port)), timeout=5).close()


def test_the_agents_of_mpirun_are_listened_for_where_they_are_told_to_call(
    routes: dict[str, str],
) -> None:
    routes["a"] = "198.51.100.7"
    shell = RemoteShell(command=["no-shell"])
    hosts = ["localhost", "a"]
    assert call_back_address(hosts, {}, shell) == ("198.51.100.7", "198.51.100.7")
    on_lo = {"PERSEUS_INTERFACES": "lo"}
    allocated = {"SLURM_JOB_ID": "1"}
    assert call_back_address(hosts, on_lo, shell) == ("127.0.0.1", "127.0.0.1")
    assert call_back_address([], on_lo | allocated, shell) == ("127.0.0.1", "127.0.0.1")
    assert call_back_address([], allocated, shell) == (socket.gethostname(), "")


@pytest.mark.parametrize(
    "variable",
    ["PERSEUS_START_TIMEOUT", "HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS"],
)
def test_the_launcher_waits_as_long_as_the_ranks_do(variable: str) -> None:
    assert start_timeout({variable: "90"}) == 90


def test_a_start_timeout_is_30_s_unless_said_otherwise() -> None:
    assert start_timeout({"PERSEUS_START_TIMEOUT": ""}) == 30


def test_a_malformed_start_timeout_is_named() -> None:
    with pytest.raises(ValueError, match=r"PERSEUS_START_TIMEOUT.* is 'soon'"):
        start_timeout({"PERSEUS_START_TIMEOUT": "soon"})
