"""Tests threads, pipes, services and time-outs of horovod.runner."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from typing import Any

import pytest

from perseus.common.util import _cache
from perseus.dropin.runner.common.util import host_hash, network, secret, settings, timeout
from perseus.dropin.runner.util import network as hosts
from perseus.dropin.runner.util import streams, threads

KEY = b"k" * 32


class Echo(network.BasicService):
    def _handle(self, req: Any, client_address: tuple[str, int]) -> Any:
        if isinstance(req, str):
            return network.AckStreamResponse(), io.StringIO(req)
        return super()._handle(req, client_address)


class EchoClient(network.BasicClient):
    def echo(self, text: str) -> str:
        stream = io.StringIO()
        assert isinstance(self._send(text, stream), network.AckStreamResponse)
        return stream.getvalue()


@pytest.fixture
def service() -> Any:
    service = Echo("echo", KEY, ["lo"])
    yield service
    service.shutdown()


class TestServices:
    def test_a_client_gets_an_answer(self, service: Echo) -> None:
        client = EchoClient("echo", service.addresses(), KEY, 1, match_intf=True)
        assert client.addresses() == {"lo": [("127.0.0.1", service.get_port())]}
        assert client.echo("ä" * 100_000) == "ä" * 100_000

    def test_a_request_without_an_answer_is_an_error_that_the_client_gets(
        self, service: Echo
    ) -> None:
        client = EchoClient("echo", service.addresses(), KEY, 1)
        assert "has no answer to a int" in str(client._send(7))

    @pytest.mark.parametrize(("name", "key"), [("other", KEY), ("echo", b"x" * 32)])
    def test_another_service_or_key_is_not_reached(
        self, name: str, key: bytes, service: Echo
    ) -> None:
        with pytest.raises(network.NoValidAddressesFound, match="answers at none of the addresses"):
            EchoClient(name, service.addresses(), key, 1, probe_timeout=1)

    def test_a_stranger_does_no_harm(self, service: Echo) -> None:
        for words in (b"", b"x" * 10, b"x" * 1000):
            with socket.create_connection(("127.0.0.1", service.get_port())) as stranger:
                with contextlib.suppress(OSError):  # it may have been sent away already
                    stranger.sendall(words)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(100):
                        pass
        assert EchoClient("echo", service.addresses(), KEY, 1).echo("a") == "a"

    def test_an_interface_that_is_not_there_is_an_error(self) -> None:
        with pytest.raises(network.NoValidAddressesFound, match="nowhere0"):
            Echo("echo", KEY, ["nowhere0"])


class TestThreads:
    def test_results_come_by_their_place(self) -> None:
        calls = [[i, 2] for i in range(5)]
        assert threads.execute_function_multithreaded(pow, calls, max_concurrent_executions=2) == {
            i: i * i for i in range(5)
        }
        assert threads.execute_function_multithreaded(pow, []) == {}
        with pytest.raises(RuntimeError, match=r"pow\(0, -1\) raised ZeroDivisionError"):
            threads.execute_function_multithreaded(pow, [[1, 1], [0, -1]])

    def test_nobody_has_to_wait_for_them(self) -> None:
        go, came = threading.Event(), threading.Barrier(3)

        def wait(_: int) -> None:
            go.wait()
            came.wait()

        calls = [[0], [1]]
        waits = {"block_until_all_done": False}
        assert threads.execute_function_multithreaded(wait, calls, **waits) is None
        go.set()
        came.wait(60)

    def test_an_event_starts_it_and_another_prevents_it(self) -> None:
        event, stop, done = threading.Event(), threading.Event(), threading.Event()
        never = threads.on_event(threading.Event(), done.set, stop=stop, check_stop_interval_s=0.01)
        stop.set()
        never.join(60)
        assert not done.is_set() and not never.is_alive()
        threads.on_event(event, done.set)
        event.set()
        assert done.wait(60)

    def test_a_silent_thread_keeps_its_errors(self) -> None:
        thread = threads.in_thread(pow, (0, -1), name="x", silent=True)
        thread.join(60)
        assert thread.daemon and thread.name == "x"

    def test_wrong_arguments(self) -> None:
        with pytest.raises(ValueError, match="args is a int; it must be a tuple"):
            threads.in_thread(print, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="event is None"):
            threads.on_event(None, print)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="stop is None"):
            threads.on_event(threading.Event(), print, daemon=False)


def test_a_pipe_passes_what_is_written_in_pieces_until_it_is_closed() -> None:
    pipe: streams.Pipe[str] = streams.Pipe()

    def write() -> None:
        pipe.write("abc")
        pipe.write("d")
        pipe.flush()

    writer = threads.in_thread(write)
    assert [pipe.read(2), pipe.read(), pipe.read()] == ["ab", "c", "d"]
    writer.join(60)
    pipe.close()
    assert pipe.read() is None
    with pytest.raises(RuntimeError, match="the pipe is closed"):
        pipe.write("e")


def test_a_time_out_says_what_did_not_happen() -> None:
    late = timeout.Timeout(-1, "Waited for {activity}")
    assert late.timed_out() and late.remaining() == 0
    with pytest.raises(
        timeout.TimeoutException, match=r"^Waited for x\. Timeout after -1 seconds\.$"
    ):
        late.check_time_out_for("x")
    early = timeout.Timeout(1000, "")
    early.check_time_out_for("x")
    assert 900 < early.remaining() <= 1000


def test_a_digest_needs_the_key() -> None:
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert (len(key), len(digest)) == (secret.SECRET_LENGTH, secret.DIGEST_LENGTH)
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(secret.make_secret_key(), b"message", digest)


def test_a_host_has_one_hash_and_another_with_salt() -> None:
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash(salt="x")
    assert host_hash.host_hash().startswith(socket.gethostname().split(".")[0] + "-")


def test_this_host_s_addresses() -> None:
    assert hosts.get_local_intfs() == {"lo"} == hosts.get_local_intfs("lo")
    assert not hosts.get_local_intfs("nowhere0")
    assert hosts.get_driver_ip(["lo"]) == "127.0.0.1" == hosts.resolve_host_address("127.0.0.1")
    assert "127.0.0.1" in hosts.get_local_host_addresses()
    assert hosts.filter_local_addresses(["127.0.0.1", "192.0.2.1"]) == ["192.0.2.1"]
    with pytest.raises(RuntimeError, match="nowhere0 has no IPv4 address"):
        hosts.get_driver_ip(["nowhere0"])
    server, port = hosts.find_port(socket.create_server)
    with server:
        assert server.getsockname()[1] == port


def test_settings_have_horovod_s_defaults() -> None:
    found = settings.Settings(hosts="a:1", num_proc=2)
    assert (found.hosts, found.num_proc, found.verbose, found.nics) == ("a:1", 2, 0, None)


def test_results_are_remembered_by_their_arguments() -> None:
    calls: list[int] = []

    @_cache
    def double(x: int) -> int:
        calls.append(x)
        return 2 * x

    assert [double(1), double(1), double(2)] == [2, 2, 4]
    assert calls == [1, 2]
