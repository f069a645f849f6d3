"""The settings of a launch, as an object. RayExecutor and other users of Horovod's launcher keep
theirs in one."""

from __future__ import annotations

from typing import Any

__all__ = ["BaseSettings", "Settings"]


class BaseSettings:
    def __init__(
        self,
        num_proc: int | None = None,
        verbose: int = 0,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        extra_mpi_args: str | None = None,
        tcp_flag: bool | None = None,
        binding_args: str | None = None,
        key: bytes | None = None,
        start_timeout: Any = None,
        output_filename: str | None = None,
        run_func_mode: bool | None = None,
        nics: Any = None,
        elastic: bool = False,
        prefix_output_with_timestamp: bool = False,
    ):
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = extra_mpi_args
        self.tcp_flag = tcp_flag
        self.binding_args = binding_args
        self.key = key
        self.start_timeout = start_timeout
        self.output_filename = output_filename
        self.run_func_mode = run_func_mode
        self.nics = nics
        self.elastic = elastic
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class Settings(BaseSettings):
    """`hosts` is "host:slots,host:slots"."""

    def __init__(self, hosts: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.hosts = hosts
