"""The table of all cases, what they cover, and what they leave out on purpose."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

import collective_cases
import functional_cases
import group_cases
import message_cases
import method_cases
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as nnf

#: Time-outs come last, as Gloo's groups are of no use after one.
CASES = [
    *collective_cases.CASES,
    *message_cases.CASES,
    *method_cases.CASES,
    *functional_cases.CASES,
    *group_cases.CASES,
]
TIME_OUTS = group_cases.TIME_OUTS

#: Functions and methods that have no case, by the reason.
LEFT_OUT = {
    "does not depend on the backend": [
        *("get_backend_config", "get_pg_count", "get_debug_level", "set_debug_level"),
        *("set_debug_level_from_env", "is_available", "is_backend_available", "is_gloo_available"),
        *("is_mpi_available", "is_nccl_available", "is_ucc_available", "is_xccl_available"),
        *("get_default_backend_for_device", "supports_complex", "rendezvous", "record_comm"),
        *("register_rendezvous_handler", "ProcessGroup.unbox", "Work.unbox"),
    ],
    "gives the backend's name": [
        "get_backend",
        "ProcessGroup.name",
        "ProcessGroup._get_backend_name",
    ],
    "PyTorch refuses it for all but Gloo": ["monitored_barrier", "ProcessGroup.monitored_barrier"],
    "belongs to other kinds of groups, which have several backends": [
        *(
            "ProcessGroup._backend_id",
            "ProcessGroup._get_backend",
            "ProcessGroup._register_backend",
        ),
        *("ProcessGroup._set_default_backend", "ProcessGroup._start_coalescing"),
        *("ProcessGroup._end_coalescing", "ProcessGroup._set_group_name"),
        *("ProcessGroup._set_group_desc", "ProcessGroup._set_sequence_number_for_group"),
        *("ProcessGroup._enable_collectives_timing", "ProcessGroup._register_on_completion_hook"),
    ],
    "ends the group": ["ProcessGroup.abort", "ProcessGroup.shutdown"],
    "is for GPUs that share memory": ["ProcessGroup.use_pg_for_symm_mem_rendezvous"],
    "tells a group that is split off or grown": [
        *("ProcessGroup.split_group", "ProcessGroup.merge_remote_group"),
    ],
    "is what torch.compile puts in the place of a function that has cases": [
        *("functional.all_gather_tensor_inplace", "functional.reduce_scatter_tensor_inplace"),
        *("functional.all_reduce_inplace", "functional.all_to_all_inplace"),
        *("functional.all_gather_inplace", "functional.irecv_inplace", "functional.isend_inplace"),
        *("functional.batch_p2p_ops_inplace",),
        *("functional.allow_inflight_collective_as_graph_input_ctx",),
    ],
    "is for PyTorch's own debugging": [
        *("ProcessGroup._id", "ProcessGroup._get_sequence_number_for_group"),
        *("Work._get_op_type", "Work._get_duration", "Work.get_future_result"),
    ],
    "is for streams of GPUs": ["Work.block_current_stream"],
    "is a setting, which the cases of time-outs use": ["ProcessGroup.set_timeout"],
}


def functions() -> Iterator[str]:
    """Yields what a case should cover, by its name there."""
    for module, prefix in ((dist, ""), (nnf, "nn.functional."), (funcol, "functional.")):
        for name, member in vars(module).items():
            # isinstance would make a deprecated member warn.
            if name.startswith("_") or type(member) is not types.FunctionType:
                continue
            if name.endswith(("_backward", "_setup_context")):  # parts of other functions
                continue
            if prefix and member.__module__ != module.__name__:
                continue
            yield prefix + name
    for kind in (dist.ProcessGroup, dist.Work):
        for name, member in vars(kind).items():
            # Numbers of backends, and pybind11's own.
            if isinstance(member, dist.ProcessGroup.BackendType) or "pybind11" in name:
                continue
            if not name.startswith("__") and not inspect.isclass(member):
                yield f"{kind.__name__}.{name}"


def missing() -> list[str]:
    """Returns what has neither a case nor a reason to have none."""
    covered = {case.covers for case in (*CASES, *TIME_OUTS)}
    covered |= {name for names in LEFT_OUT.values() for name in names}
    return [name for name in functions() if name not in covered]
