"""python -m horovod.tensorflow.data.compute_worker CONFIGFILE: runs the ranks of a compute job."""

from __future__ import annotations

import argparse

import tensorflow as tf

import perseus.tensorflow.horovod as hvd
from perseus.dropin.runner.common.service.compute_service import ComputeService
from perseus.dropin.runner.common.util import secret
from perseus.dropin.tensorflow_data.compute_service import TfDataServiceConfig, compute_worker_fn

__all__ = ["main"]


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs this rank of a compute job until the training job shuts the service down.

    Rank 0 writes `configfile`, which the training job reads. ValueError unless the number of ranks
    is a multiple of `dispatchers`.
    """
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(
            f"dispatchers is {dispatchers}; the number of ranks, which is {hvd.size()}, must be a "
            "multiple of it"
        )
    if dispatcher_side not in ("compute", "training"):
        raise ValueError(f"dispatcher_side is {dispatcher_side!r}; it must be compute or training")
    workers = hvd.size() // dispatchers
    service = config = None
    try:
        if hvd.rank() == 0:
            key = secret.make_secret_key()
            service = ComputeService(dispatchers, workers, key=key)
            config = TfDataServiceConfig(
                dispatchers, workers, dispatcher_side, service.addresses(), key, timeout
            )
            config.write(configfile)
        with tf.device("/cpu:0"):
            config = hvd.broadcast_object(config, name="TfDataServiceConfig")
        compute_worker_fn(config)
    finally:
        if service is not None:
            service.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(": ")[2])
    parser.add_argument("configfile", help="the file for the training job, on a shared filesystem")
    parser.add_argument(
        "--dispatchers", default=1, type=int, help="one for all ranks, or one for each rank"
    )
    parser.add_argument(
        "--dispatcher-side",
        default="compute",
        choices=["compute", "training"],
        help="the job that runs the dispatchers",
    )
    parser.add_argument(
        "--timeout",
        default=60,
        type=int,
        help="seconds in which dispatchers and workers must register",
    )
    args = parser.parse_args()
    main(args.dispatchers, args.dispatcher_side, args.configfile, args.timeout)
