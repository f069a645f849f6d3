"""Tests horovod.tensorflow.data: a training job whose datasets another job computes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")  # tests/python/tensorflow may be taken for TensorFlow

from perseus.dropin.runner.common.service.compute_service import ComputeClient, ComputeService
from perseus.dropin.runner.common.util.timeout import TimeoutException

KEY = b"k" * 32
ELEMENTS = 64

TRAIN = """
import json, sys
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

file, side, reuse = sys.argv[1], sys.argv[2], sys.argv[3] == "reuse"
hvd.init()
config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
data = tf.data.Dataset.range(64).map(lambda x: x * 10).batch(4)

def read(dataset):
    found = hvd.allgather_object([int(x) for batch in dataset.as_numpy_iterator() for x in batch])
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)

if side == "compute":
    read(data.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=reuse))
else:
    with tf_data_service(config, hvd.rank()) as address:
        service = tf.data.experimental.service.distribute(
            "distributed_epoch", address, job_name="job" if reuse else None
        )
        read(data.apply(service))
hvd.allreduce(tf.zeros(1), name="end")
if hvd.rank() == 0:
    config.compute_client().shutdown()
"""

HOROVODRUN = [sys.executable, "-m", "perseus.dropin", "--run", "horovodrun", "-np", "2"]


@pytest.mark.parametrize("dispatchers", [1, 2])
@pytest.mark.parametrize("side", ["compute", "training"])
@pytest.mark.parametrize("reuse", ["reuse", "apart"])
def test_a_job_computes_another_s_data(
    dispatchers: int, side: str, reuse: str, tmp_path: Path
) -> None:
    file = tmp_path / "service.json"
    (tmp_path / "train.py").write_text(TRAIN)
    worker = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker", str(file)]
    worker += ["--dispatchers", str(dispatchers), "--dispatcher-side", side, "--timeout", "120"]
    train = [sys.executable, str(tmp_path / "train.py"), str(file), side, reuse]
    with subprocess.Popen(
        [*HOROVODRUN, *worker], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as compute:
        training = subprocess.run(
            [*HOROVODRUN, *train], capture_output=True, text=True, timeout=240
        )
        said, _ = compute.communicate(timeout=60)
    assert training.returncode == 0, training.stderr + said
    assert compute.returncode == 0, said
    (line,) = [line for line in training.stdout.splitlines() if line.startswith("[0]<stdout>:[")]
    found = json.loads(line.partition(":")[2])
    whole = [10 * x for x in range(ELEMENTS)]
    if reuse == "reuse" and dispatchers == 1:
        assert sorted(found[0] + found[1]) == whole  # each went to one of the ranks
    else:
        assert [sorted(each) for each in found] == [whole, whole]


@pytest.fixture
def service() -> Iterator[ComputeService]:
    service = ComputeService(2, 2, KEY, nics=["lo"])
    yield service
    service.shutdown()


@pytest.fixture
def client(service: ComputeService) -> ComputeClient:
    return ComputeClient(service.addresses(), KEY)


def announce(event: threading.Event, wait: Callable[[Any], Any], request: Any) -> Any:
    event.set()
    return wait(request)


class TestRegistration:
    def test_a_client_waits_for_a_dispatcher_and_its_workers(
        self, service: ComputeService, client: ComputeClient
    ) -> None:
        found: list[Any] = []

        def wait() -> None:
            other = ComputeClient(service.addresses(), KEY)
            found.append(other.wait_for_dispatcher_registration(1, 60))
            other.wait_for_dispatcher_worker_registration(1, 60)
            found.append("workers")

        thread = threading.Thread(target=wait)
        thread.start()
        client.register_dispatcher(1, "grpc://a:1")
        client.register_dispatcher(1, "grpc://a:1")  # a request may come twice
        client.register_worker_for_dispatcher(1, 2)
        client.register_worker_for_dispatcher(1, 2)
        with pytest.raises(TimeoutException, match="workers for dispatcher 1 did not register"):
            client.wait_for_dispatcher_worker_registration(1, 0.01)
        client.register_worker_for_dispatcher(1, 3)
        thread.join(60)
        assert found == ["grpc://a:1", "workers"]

    def test_wrong_registrations_are_errors_of_the_client(self, client: ComputeClient) -> None:
        with pytest.raises(IndexError, match="dispatcher id is 2; it must be from 0 to 1"):
            client.register_dispatcher(2, "grpc://a:1")
        client.register_dispatcher(0, "grpc://a:1")
        with pytest.raises(ValueError, match="dispatcher 0 is registered at grpc://a:1 already"):
            client.register_dispatcher(0, "grpc://b:1")
        with pytest.raises(TimeoutException, match="dispatcher 1 did not register in"):
            client.wait_for_dispatcher_registration(1, 0.01)

    def test_a_shutdown_ends_all_waiting(
        self, service: ComputeService, client: ComputeClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handled = [threading.Event(), threading.Event()]
        names = ("_wait_for_dispatcher", "_wait_for_shutdown")
        for event, name in zip(handled, names, strict=True):
            # It is called with the lock held that the shutdown takes.
            wait = functools.partial(announce, event, getattr(service, name))
            monkeypatch.setattr(service, name, wait)
        ended: list[str] = []

        def wait_for_dispatcher() -> None:
            try:
                client.wait_for_dispatcher_registration(0, 600)
            except ValueError as error:
                ended.append(str(error))

        def wait_for_shutdown() -> None:
            client.wait_for_shutdown()
            ended.append("shutdown")

        threads = [
            threading.Thread(target=target) for target in (wait_for_dispatcher, wait_for_shutdown)
        ]
        for thread in threads:
            thread.start()
        assert all(event.wait(60) for event in handled)
        client.shutdown()
        for thread in threads:
            thread.join(60)
        assert sorted(ended) == [
            "shutdown",
            "the compute service was shut down before dispatcher 0 registered",
        ]
        client.wait_for_shutdown()  # which is over

    @pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
    def test_a_service_of_nothing_is_an_error(self, numbers: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="is 0; it must be at least 1"):
            ComputeService(*numbers, KEY)


def test_a_file_says_how_to_reach_the_service(tmp_path: Path) -> None:
    code = f"""
import os, stat
from horovod.tensorflow.data.compute_service import TfDataServiceConfig
config = TfDataServiceConfig(1, 2, "compute", {{"lo": [("127.0.0.1", 5)]}}, {KEY!r}, timeout=7)
config.write("config")
assert TfDataServiceConfig.read("config") == config
assert os.listdir() == ["config"] and stat.S_IMODE(os.stat("config").st_mode) == 0o600
assert TfDataServiceConfig.from_dict(config.to_dict()) == config
"""
    command = [sys.executable, "-m", "perseus.dropin", "-c", code]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
