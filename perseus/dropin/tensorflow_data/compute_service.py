"""A training job's data pipeline on the processes of another job, by TensorFlow's tf.data service.

The compute job writes a file that says how to reach it (TfDataServiceConfig). Ranks of the training
job read it, and send their datasets to the compute job's workers, which compute the batches.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

import perseus.tensorflow.horovod as hvd
from perseus.dropin.runner.common.service.compute_service import ComputeClient
from perseus.run.network import address_toward
from perseus.run.own_file import open_to_read

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_LOOK_SECONDS = 0.1
_HEARTBEAT_MS = 1000


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """How to reach a compute job. The key lets whoever has it use the job.

    Args:
      dispatchers: number of dispatchers: one for all ranks, or one for each rank.
      workers_per_dispatcher: number of compute workers of each.
      dispatcher_side: "compute" or "training": the job that runs the dispatchers.
      addresses: those of the ComputeService, by interface.
      timeout: seconds in which dispatchers and workers must register.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """Returns it in types that JSON has."""
        return {**vars(self), "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        addresses = {
            name: [(address, port) for address, port in each]
            for name, each in config["addresses"].items()
        }
        key = bytes.fromhex(config["key"])
        return TfDataServiceConfig(**{**config, "addresses": addresses, "key": key})

    def write(self, filename: str) -> None:
        """Writes it to a file that only its owner can read, and that is whole once it is there."""
        folder, name = os.path.split(os.path.abspath(filename))
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f"{name}.", delete=False) as file:
            json.dump(self.to_dict(), file)
        os.rename(file.name, filename)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads what `write` has written; can wait until it is there, for as long as it takes.

        A file that another user has made is an error: it would name whom we send our data.
        """
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(_LOOK_SECONDS)  # the file may be another host's, so nothing tells us
        with open_to_read(Path(filename)) as file:
            return TfDataServiceConfig.from_dict(json.load(file))


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Yields the address of a rank's dispatcher, once that has all its workers.

    If the dispatchers are the training job's, runs this rank's until the end of the context.
    """
    compute = compute_config.compute_client(verbose=2)
    dispatcher = rank if compute_config.dispatchers > 1 else 0
    server = None
    if compute_config.dispatcher_side == "training" and dispatcher == rank:
        server = _start_dispatcher(compute_config, compute, dispatcher)
    try:
        address = compute.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        compute.wait_for_dispatcher_worker_registration(dispatcher, compute_config.timeout)
        yield address
    finally:
        _stop(server)


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """Returns a dataset whose elements the compute job computes. Also a method of tf.data.Dataset.

    Args:
      rank, size: of the training job.
      processing_mode: "distributed_epoch" computes each element once for all ranks that share a
        dispatcher's job, "parallel_epochs" once for each worker.
      reuse_dataset: all ranks of a dispatcher read one dataset, each element going to one of them.
      round_robin: with reuse_dataset, they get the elements in turns, in order.

    Raises RuntimeError if the dispatchers are the training job's; `tf_data_service` runs those.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "dispatcher_side is training; send_to_data_service needs the compute job's "
            "dispatchers. Use tf_data_service, in whose context the dispatcher runs"
        )
    takes_turns = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if takes_turns else None,
                num_consumers=size if takes_turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs this rank of the compute job until the service is shut down: a worker of the tf.data
    service and, on the first rank of each dispatcher, that."""
    hvd.init()
    rank = hvd.rank()
    dispatcher, place = divmod(rank, compute_config.workers_per_dispatcher)
    compute = compute_config.compute_client(verbose=2)
    server = worker = None
    try:
        if compute_config.dispatcher_side == "compute" and place == 0:
            server = _start_dispatcher(compute_config, compute, dispatcher)
        address = compute.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(
                dispatcher_address=address.partition("://")[2],
                worker_address=f"{_own_address(compute_config)}:%port%",
                heartbeat_interval_ms=_HEARTBEAT_MS,
                dispatcher_timeout_ms=compute_config.timeout * 1000,
            )
        )
        compute.register_worker_for_dispatcher(dispatcher, rank)
        compute.wait_for_shutdown()
    finally:
        _stop(worker)
        _stop(server)


def _start_dispatcher(
    config: TfDataServiceConfig, compute: ComputeClient, dispatcher: int
) -> tf.data.experimental.service.DispatchServer:
    server = tf.data.experimental.service.DispatchServer()
    protocol, _, place = server.target.partition("://")
    # The target names localhost, which is another host for others.
    port = place.rpartition(":")[2]
    compute.register_dispatcher(dispatcher, f"{protocol}://{_own_address(config)}:{port}")
    return server


def _own_address(config: TfDataServiceConfig) -> str:
    """Returns the address from which this host reaches the compute service, and so others reach
    this host. It is no loopback address if the service has another."""
    hosts = [host for each in config.addresses.values() for host, _ in each]
    return address_toward(next((host for host in hosts if not host.startswith("127.")), hosts[0]))


def _stop(server: Any) -> None:
    if server is not None:
        server._stop()  # there is no public way
        server.join()
