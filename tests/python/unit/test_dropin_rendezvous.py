"""Tests the drop-in's servers, and how workers reach an ElasticDriver through one."""

from __future__ import annotations

import pickle
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from perseus.dropin.runner.common.util.hosts import SlotInfo
from perseus.dropin.runner.elastic import driver as module
from perseus.dropin.runner.elastic.discovery import FixedHosts
from perseus.dropin.runner.elastic.driver import ElasticDriver
from perseus.dropin.runner.elastic.rendezvous import create_rendezvous_handler
from perseus.dropin.runner.elastic.worker import WorkerNotificationManager
from perseus.dropin.runner.gloo_run import create_slot_env_vars, register_shutdown_event
from perseus.dropin.runner.http.http_server import KVStoreServer, RendezvousServer

SLOT = SlotInfo("a", 2, 0, 1, 3, 1, 2)


def request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{port}{path}"
    asked = urllib.request.Request(url, data=body, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    one = RendezvousServer()
    yield one
    one.stop()


def test_a_store_keeps_bytes_by_scope_and_key(server: RendezvousServer) -> None:
    server.init([SLOT])  # before the start, there is nothing to forget
    port = server.start()
    assert request(port, "GET", "/scope/key") == (404, b"")
    assert request(port, "PUT", "/scope/key", b"\0value") == (200, b"")
    assert request(port, "GET", "/scope/key") == (200, b"\0value")
    assert request(port, "DELETE", "/scope/key") == (200, b"")
    assert request(port, "GET", "/scope/key") == (404, b"")
    request(port, "PUT", "/scope/key", b"value")
    server.init([SLOT])
    assert request(port, "GET", "/scope/key") == (404, b"")
    assert request(port, "GET", "/key") == (400, b"")
    server.stop()
    server.stop()
    with pytest.raises(urllib.error.URLError):
        request(port, "GET", "/scope/key")


def test_a_store_for_results() -> None:
    server = KVStoreServer(verbose=0)
    port = server.start_server()
    request(port, "PUT", "/runfunc/func", b"value")
    assert request(port, "GET", "/runfunc/func") == (200, b"value")
    server.shutdown_server()


def test_workers_meet_through_the_server_and_hear_of_changes(
    server: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.01)
    hosts = FixedHosts({"a": 1})
    driver = ElasticDriver(server, hosts, 1, 2)
    port = server.start(create_rendezvous_handler(driver))
    heard: list[tuple[float, int]] = []
    is_told = threading.Event()

    class Listener:
        def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
            heard.append((timestamp, update_res))
            is_told.set()

    def work(slot: SlotInfo, events: list[threading.Event]) -> tuple[int, float]:
        manager = WorkerNotificationManager()
        manager.init("127.0.0.1", port, "lo", slot.hostname, slot.local_rank)
        manager.init("127.0.0.1", port, "lo", slot.hostname, slot.local_rank)  # does nothing
        listener = Listener()
        manager.register_listener(listener)
        path = f"/rank_and_size/{slot.hostname}:{slot.local_rank}"
        if slot.hostname == "a":
            assert request(port, "GET", path) == (200, b"0,1,0,1,0,1")
            hosts.set({"a": 1, "b": 1})
            assert is_told.wait(20)
        status, place = request(port, "GET", path)
        manager.remove_listener(listener)
        is_right = (status, place) == (200, b"0,2,0,1,0,2" if slot.rank == 0 else b"1,2,0,1,1,2")
        return 0 if is_right else 1, time.time()

    driver.start(1, work)
    results = driver.get_results().worker_results
    driver.stop()
    assert {name: code for name, (code, _) in results.items()} == {"a[0]": 0, "b[0]": 0}
    assert [change for _, change in heard] == [2]


def test_what_a_stranger_sends_is_refused_and_not_unpickled(server: RendezvousServer) -> None:
    driver = ElasticDriver(server, FixedHosts({"a": 1}), 1, 2)
    port = server.start(create_rendezvous_handler(driver))
    bomb = pickle.dumps(SLOT)
    for body in (bomb, b"[]", b'{"addresses": 1, "key": "00"}', b'{"addresses": {}, "key": "x"}'):
        assert request(port, "PUT", "/worker_addresses/a:0", body) == (400, b"")
    assert request(port, "GET", "/rank_and_size/a") == (400, b"")
    assert request(port, "GET", "/rank_and_size/a:7") == (200, b"-1,-1,-1,-1,-1,-1")
    driver.stop()


def test_without_a_server_there_is_nobody_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    before = threading.active_count()
    WorkerNotificationManager().init()
    assert threading.active_count() == before


def test_a_place_as_variables() -> None:
    assert create_slot_env_vars(SLOT) == {
        "HOROVOD_HOSTNAME": "a",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
    }


def test_signals_set_the_event() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        event = register_shutdown_event()
        assert not event.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert event.wait(20)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
