"""Horovod's modules: those that are here, and the reasons why others are not."""

from __future__ import annotations

__all__ = ["MISSING", "MODULES"]

#: From the modules of Horovod to ours that replace them.
MODULES = {
    "horovod.common": "perseus.common",
    "horovod.common.basics": "perseus.common.basics",
    "horovod.common.elastic": "perseus.common.elastic",
    "horovod.common.exceptions": "perseus.common.exceptions",
    "horovod.common.process_sets": "perseus.common.process_sets",
    "horovod.common.util": "perseus.common.util",
    "horovod.keras": "perseus.keras",
    "horovod.keras.callbacks": "perseus.keras.callbacks",
    "horovod.keras.elastic": "perseus.keras.elastic",
    "horovod.mxnet": "perseus.mxnet.horovod",
    "horovod.mxnet.compression": "perseus.mxnet.horovod.compression",
    "horovod.mxnet.functions": "perseus.mxnet.horovod.functions",
    "horovod.mxnet.mpi_ops": "perseus.mxnet.horovod.mpi_ops",
    "horovod.runner": "perseus.dropin.runner",
    **{
        f"horovod.runner.{name}": f"perseus.dropin.runner.{name}"
        for name in (
            "common",
            "common.service",
            "common.service.compute_service",
            "common.util",
            "common.util.codec",
            "common.util.config_parser",
            "common.util.env",
            "common.util.host_hash",
            "common.util.hosts",
            "common.util.network",
            "common.util.safe_shell_exec",
            "common.util.secret",
            "common.util.settings",
            "common.util.timeout",
            "common.util.tiny_shell_exec",
            "elastic",
            "elastic.constants",
            "elastic.discovery",
            "elastic.driver",
            "elastic.registration",
            "elastic.rendezvous",
            "elastic.settings",
            "elastic.worker",
            "gloo_run",
            "http",
            "http.http_server",
            "launch",
            "util",
            "util.network",
            "util.streams",
            "util.threads",
        )
    },
    "horovod.tensorflow": "perseus.tensorflow.horovod",
    **{
        f"horovod.tensorflow.{name}": f"perseus.tensorflow.horovod.{name}"
        for name in (
            "compression",
            "elastic",
            "functions",
            "gradient_aggregation",
            "gradient_aggregation_eager",
            "keras",
            "keras.callbacks",
            "keras.elastic",
            "mpi_ops",
            "sync_batch_norm",
            "util",
        )
    },
    "horovod.tensorflow.data": "perseus.dropin.tensorflow_data",
    "horovod.tensorflow.data.compute_service": "perseus.dropin.tensorflow_data.compute_service",
    "horovod.tensorflow.data.compute_worker": "perseus.dropin.tensorflow_data.compute_worker",
    "horovod.torch": "perseus.torch.horovod",
    "horovod.torch.compression": "perseus.torch.horovod.compression",
    "horovod.torch.elastic": "perseus.torch.horovod.elastic",
    "horovod.torch.elastic.sampler": "perseus.torch.horovod.elastic.sampler",
    "horovod.torch.elastic.state": "perseus.torch.horovod.elastic.state",
    "horovod.torch.functions": "perseus.torch.horovod.functions",
    "horovod.torch.mpi_ops": "perseus.torch.horovod.mpi_ops",
    "horovod.torch.optimizer": "perseus.torch.horovod.optimizer",
    "horovod.torch.sync_batch_norm": "perseus.torch.horovod.sync_batch_norm",
}

_NO_LAUNCHER = (
    "Perseus does not start jobs on {} yet; horovod.run and perseusrun start them on hosts"
)
_NO_RUNNER = (
    "it is the inside of Horovod's launcher; horovod.run, horovodrun and perseusrun start jobs in "
    "its place"
)
_NO_KEYLESS_CLIENT = (
    "it unpickles what a server sends that shows no key; horovod.runner.http.http_server is here"
)
_NO_LSF = "Perseus does not read LSF's allocation yet; say -H host:slots,host:slots"
_NO_EXTENSION = "Perseus is not compiled against frameworks and needs no extension modules for them"

#: Modules of Horovod that are missing here, and the reasons.
MISSING = {
    "horovod._keras": "it is Horovod's own; horovod.keras and horovod.tensorflow.keras are here",
    "horovod.spark": _NO_LAUNCHER.format("Spark"),
    "horovod.ray": _NO_LAUNCHER.format("Ray"),
    "horovod.data": "Perseus has no data loaders; those of the frameworks load ahead",
    "horovod.mxnet.mpi_lib": _NO_EXTENSION,
    "horovod.tensorflow.mpi_lib": _NO_EXTENSION,
    "horovod.torch.mpi_lib": _NO_EXTENSION,
    "horovod.torch.mpi_lib_v2": _NO_EXTENSION,
    "horovod.runner.common.service.driver_service": _NO_RUNNER,
    "horovod.runner.common.service.task_service": _NO_RUNNER,
    "horovod.runner.driver": _NO_RUNNER,
    "horovod.runner.http.http_client": _NO_KEYLESS_CLIENT,
    "horovod.runner.js_run": _NO_LSF,
    "horovod.runner.mpi_run": _NO_RUNNER,
    "horovod.runner.run_task": _NO_RUNNER,
    "horovod.runner.task": _NO_RUNNER,
    "horovod.runner.task_fn": _NO_RUNNER,
    "horovod.runner.util.cache": _NO_RUNNER,
    "horovod.runner.util.lsf": _NO_LSF,
    "horovod.runner.util.remote": _NO_RUNNER,
}
