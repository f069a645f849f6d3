"""Tests what strangers can do to horovod.runner's services: callers, and programs in between."""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perseus.dropin.runner.common.util import network, wire
from perseus.run import call_back, message_tags

KEY = b"k" * 32
Change = Callable[[bytes], bytes]


class Echo(network.BasicService):
    """Answers with the text that it is asked for, or waits."""

    def __init__(self) -> None:
        self.handled: list[Any] = []
        self.asked, self.may_answer = threading.Event(), threading.Event()
        super().__init__("echo", KEY, ["lo"])

    def _handle(self, req: Any, client_address: tuple[str, int]) -> Any:
        self.handled.append(req)
        if req == "wait":
            self.asked.set()
            assert self.may_answer.wait(60)
        if isinstance(req, io.StringIO):
            return network.AckStreamResponse(), req
        return f"answer to {req}" if isinstance(req, str) else super()._handle(req, client_address)


class Between:
    """A program between a client and a service, which hears all and may change it."""

    def __init__(self, port: int):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[dict[str, bytes]] = []  # what each side has said, connection by connection
        self.changes: dict[str, Change] = {}
        self.repeats: int | None = None  # the connection whose words clients hear once more
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.repeats is not None:
                    threading.Thread(target=self._repeat, args=(client,), daemon=True).start()
                    continue
                service = socket.create_connection(("127.0.0.1", self._port))
                heard = {"client": b"", "service": b""}
                self.heard.append(heard)
                for side, ends in {
                    "client": (client, service),
                    "service": (service, client),
                }.items():
                    pump = threading.Thread(target=self._pass_on, args=(heard, side, *ends))
                    pump.daemon = True
                    pump.start()

    def _pass_on(
        self, heard: dict[str, bytes], side: str, source: socket.socket, target: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                heard[side] += data
                target.sendall(self.changes.get(side, lambda data: data)(data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _repeat(self, client: socket.socket) -> None:
        assert self.repeats is not None
        with client, contextlib.suppress(OSError):
            client.sendall(self.heard[self.repeats]["service"])
            while client.recv(1 << 16):
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def service() -> Iterator[Echo]:
    service = Echo()
    yield service
    service.may_answer.set()
    service.shutdown()


@pytest.fixture
def between(service: Echo) -> Iterator[Between]:
    between = Between(service.get_port())
    yield between
    between.close()


def client_of(port: int, timeout: float = 20, attempts: int = 1) -> network.BasicClient:
    addresses = {"lo": [("127.0.0.1", port)]}
    return network.BasicClient("echo", addresses, KEY, 1, probe_timeout=timeout, attempts=attempts)


def call(service: Echo) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.get_port()), timeout=10)


def prove(service: Echo) -> socket.socket:
    """Returns a connection that is taken in, on which no request has begun."""
    connection, _ = wire.call(("127.0.0.1", service.get_port()), KEY, time.monotonic() + 10)
    connection.settimeout(10)
    return connection


def wait_until_sent_away(caller: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while caller.recv(1 << 16):
            pass


class TestStrangers:
    def test_what_a_stranger_announces_is_not_read(self, service: Echo) -> None:
        with call(service) as stranger:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                stranger.sendall(b"d" * 32 + (1 << 30).to_bytes(8, "big"))
                for _ in range(64):  # of a gigabyte
                    stranger.sendall(bytes(1 << 20))
            wait_until_sent_away(stranger)
        assert service.handled == []

    def test_a_caller_that_says_too_little_is_sent_away_after_five_seconds(
        self, service: Echo
    ) -> None:
        before = time.monotonic()
        with call(service) as silent, call(service) as slow, prove(service) as proven:
            slow.sendall(b"x")
            for caller in (slow, silent, proven):
                wait_until_sent_away(caller)
        assert 4 < time.monotonic() - before < 8

    def test_a_shutdown_waits_for_no_stranger(self) -> None:
        service = Echo()
        with call(service) as silent, call(service) as slow, prove(service) as proven:
            slow.sendall(b"x")
            assert client_of(service.get_port()).addresses()  # so all have been accepted
            before = time.monotonic()
            service.shutdown()
            assert time.monotonic() - before < 2
            for caller in (silent, slow, proven):
                wait_until_sent_away(caller)
            service.shutdown()  # does nothing the second time
            with pytest.raises(OSError):
                call(service)

    def test_a_shutdown_waits_for_a_client_s_request(self) -> None:
        service = Echo()
        answers: list[str] = []
        client = client_of(service.get_port())
        asking = threading.Thread(target=lambda: answers.append(client._send("wait")))
        asking.start()
        assert service.asked.wait(60)
        ending = threading.Thread(target=service.shutdown)
        ending.start()
        ending.join(0.2)
        assert ending.is_alive()
        service.may_answer.set()
        ending.join(60)
        asking.join(60)
        assert answers == ["answer to wait"]

    def test_a_client_may_wait_for_longer_than_strangers(self, service: Echo) -> None:
        client = client_of(service.get_port())
        threading.Timer(6, service.may_answer.set).start()
        assert client._send("wait") == "answer to wait"


#: A service that has few descriptors. It uses those that are left when it reads a line, lets them
#: go at the next, and then says how much processor time it has taken meanwhile.
FEW_DESCRIPTORS = f"""
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from perseus.dropin.runner.common.util import network, wire
from perseus.run import call_back, message_tags
service = network.BasicService("echo", {KEY!r}, ["lo"])
print(service.get_port(), flush=True)
sys.stdin.readline()
before, taken = time.process_time(), []
try:
    while True: taken.append(os.dup(0))
except OSError: print("exhausted", flush=True)
sys.stdin.readline()
for fd in taken: os.close(fd)
print(time.process_time() - before, flush=True)
sys.stdin.readline()
service.shutdown()
print("over", flush=True)
"""


@contextlib.contextmanager
def service_with_few_descriptors() -> Iterator[tuple[int, Callable[[], str]]]:
    """Yields the port, and what has the service go on and returns the line that it says then."""
    command = [sys.executable, "-c", FEW_DESCRIPTORS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdin and service.stdout
        stdin, stdout = service.stdin, service.stdout

        def go_on() -> str:
            stdin.write("\n")
            stdin.flush()
            return stdout.readline().strip()

        try:
            yield int(stdout.readline()), go_on
        finally:
            service.kill()


class TestDescriptors:
    def test_a_crowd_of_silent_strangers_leaves_room_for_a_client(self) -> None:
        with service_with_few_descriptors() as (port, _), contextlib.ExitStack() as crowd:
            for _ in range(200):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            assert client_of(port, timeout=4).addresses()

    def test_a_service_without_descriptors_neither_ends_nor_spins(self) -> None:
        with service_with_few_descriptors() as (port, go_on):
            assert go_on() == "exhausted"
            with contextlib.ExitStack() as crowd:
                for _ in range(20):
                    crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                time.sleep(1)  # in which it would spin
                assert float(go_on()) < 0.5
                assert client_of(port).addresses()
                assert go_on() == "over"


class TestProgramsInBetween:
    def test_a_request_is_not_carried_out_once_more(self, service: Echo, between: Between) -> None:
        assert client_of(between.port)._send("once") == "answer to once"
        with call(service) as stranger:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(between.heard[-1]["client"])
            wait_until_sent_away(stranger)
        assert service.handled.count("once") == 1

    def test_an_answer_is_not_taken_for_that_to_another_question(
        self, service: Echo, between: Between
    ) -> None:
        client = client_of(between.port)
        assert client._send("first") == "answer to first"
        between.repeats = len(between.heard) - 1
        with pytest.raises(PermissionError, match="does not have our key"):
            client._send("second")

    @pytest.mark.parametrize(
        ("side", "handshake"),
        [
            ("client", wire.ANSWER_BYTES),
            ("service", call_back.CHALLENGE_BYTES + message_tags.record_bytes(0)),
        ],
    )
    @pytest.mark.parametrize("place", ["length", "object"])
    def test_a_changed_message_is_not_believed(
        self, side: str, handshake: int, place: str, service: Echo, between: Between
    ) -> None:
        client = client_of(between.port)
        passed = 0
        changed = handshake + (7 if place == "length" else message_tags.record_bytes(8) + 7)

        def change(data: bytes) -> bytes:
            nonlocal passed
            begin, passed = passed, passed + len(data)
            if begin <= changed < passed:
                data = bytearray(data)
                data[changed - begin] ^= 1
            return bytes(data)

        between.changes[side] = change
        with pytest.raises(RuntimeError if side == "service" else (EOFError, ConnectionResetError)):
            client._send("text")
        assert ("text" in service.handled) == (side == "service")

    def test_a_text_that_is_cut_short_is_an_error(self, service: Echo, between: Between) -> None:
        passed = 0

        def cut(data: bytes) -> bytes:
            nonlocal passed
            passed += len(data)
            if passed > 2_000_000:
                raise OSError
            return data

        client = client_of(between.port)
        whole = io.StringIO()
        client._send(io.StringIO("ä" * 1_000_000), whole)
        assert whole.getvalue() == "ä" * 1_000_000
        passed, between.changes["service"] = 0, cut
        client = client_of(between.port, attempts=3)
        part = io.StringIO()
        with pytest.raises((EOFError, ConnectionResetError)):
            client._send(io.StringIO("ä" * 1_000_000), part)
        assert 0 < len(part.getvalue()) < 1_000_000  # it is not written twice


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


class TestWires:
    """Messages as they lie on the wire after the handshake."""

    def written(self, *objects: Any, key: bytes = KEY) -> list[bytes]:
        """Returns the bytes of each object, written one after the other."""
        writer, parts = network.Wire(key), []
        for one in objects:
            file = io.BytesIO()
            writer.write(one, file)
            parts.append(file.getvalue())
        return parts

    def read(self, data: bytes, count: int = 1) -> list[Any]:
        reader, file = network.Wire(KEY), io.BytesIO(data)
        return [reader.read(file) for _ in range(count)]

    def test_objects_arrive_in_order(self) -> None:
        objects = [1, None, "x" * 5_000_000, {"a": b""}]
        assert self.read(b"".join(self.written(*objects)), 4) == objects

    def test_nothing_is_unpickled_before_its_digest_is_checked(self) -> None:
        with pytest.raises(RuntimeError, match="does not have our key"):
            self.read(self.written(Trap(), key=b"another key")[0])

    @pytest.mark.parametrize("order", [(0, 0), (1, 0), (0, 2)])
    def test_messages_out_of_order_are_refused(self, order: tuple[int, int]) -> None:
        parts = self.written("a", "b", "c")
        with pytest.raises(RuntimeError, match="repeated or added"):
            self.read(b"".join(parts[which] for which in order), 2)

    def test_a_message_that_is_cut_short_is_none(self) -> None:
        (message,) = self.written(Trap())
        for length in range(len(message)):
            with pytest.raises(EOFError):
                self.read(message[:length])

    def test_not_even_with_the_key_may_a_message_be_of_any_length(self) -> None:
        session = message_tags.Session(KEY, b"", b"", b"")
        head = session.sealer.seal(((1 << 30) + 1).to_bytes(8, "big"))
        with pytest.raises(RuntimeError, match="no message is so long"):
            self.read(head)
