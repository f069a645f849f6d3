"""make_migrating_page.py [--check]: writes the tables and diffs of docs/migrating.md.

Run by a Python that has perseus_core, torch, tensorflow and pytest. With --check it writes nothing,
and fails if the page is not what it would write. It also fails if one of Horovod's names is neither
here nor explained.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from generated_page import ROOT, parse_arguments, table, update
from make_settings_page import alias

from perseus.dropin import modules as dropin_modules
from perseus.run.options import make_parser
from perseus.run.setting_options import SETTING_OPTIONS, UNSUPPORTED, WITHOUT_MEANING
from perseus_core import settings

TESTS = ROOT / "tests/python/unit"
sys.path.insert(0, str(TESTS))
signatures = importlib.import_module("test_horovod_signatures")

PAGE = ROOT / "docs/migrating.md"
#: Horovod's modules, and ours. docs/mxnet.md is for MXNet, which has an environment of its own.
MODULES = {
    name: ours
    for name, ours in dropin_modules.MODULES.items()
    if not name.startswith("horovod.mxnet")
}
STEPS = ROOT / "examples/torch/08_migrating"

#: Names that `import horovod.torch as hvd` gives in Horovod 0.28.1. It has no __all__.
_HOROVOD_TORCH = """
init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
start_timeline stop_timeline mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set add_process_set remove_process_set
Average Sum Adasum Min Max Product
allreduce allreduce_ allreduce_async allreduce_async_
grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
join barrier poll synchronize
allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
Compression DistributedOptimizer SyncBatchNorm HorovodInternalError elastic check_extension
"""
HOROVOD_TORCH = _HOROVOD_TORCH.split()

#: Names that `import horovod.tensorflow as hvd` gives besides those in HOROVOD_TORCH.
_HOROVOD_TENSORFLOW = """
is_homogeneous rank_op local_rank_op size_op local_size_op process_set_included_op
broadcast_object_fn broadcast_variables broadcast_global_variables BroadcastGlobalVariablesHook
DistributedGradientTape PartialDistributedGradientTape SyncBatchNormalization
LocalGradientAggregationHelper refs_to_vars vars_to_refs gpu_available split_list
handle_average_backwards_compatibility check_num_rank_power_of_2 device_compatibility_check
"""

#: Names in HOROVOD_TORCH that horovod.tensorflow does not have.
_ONLY_TORCH = """
allreduce_ allreduce_async allreduce_async_ grouped_allreduce_ grouped_allreduce_async
grouped_allreduce_async_ sparse_allreduce_async allgather_async grouped_allgather_async
broadcast_async broadcast_async_ alltoall_async reducescatter_async grouped_reducescatter_async
barrier poll synchronize broadcast_optimizer_state broadcast_parameters SyncBatchNorm
HorovodInternalError
"""
HOROVOD_TENSORFLOW = [
    *(name for name in HOROVOD_TORCH if name not in _ONLY_TORCH.split()),
    *_HOROVOD_TENSORFLOW.split(),
]

#: Names that horovod.tensorflow.keras has besides functions of its own; horovod.keras has most.
_HOROVOD_KERAS = """
init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
start_timeline stop_timeline mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built Average Sum Compression global_process_set
callbacks elastic
"""
_OF_SETS = ["ProcessSet", "add_process_set", "remove_process_set"]

#: Modules that take most of their names from other modules, and those modules.
REEXPORTED = {
    "horovod.torch": (
        "horovod.common.process_sets",
        "horovod.torch.functions",
        "horovod.torch.mpi_ops",
        "horovod.torch.optimizer",
        "horovod.torch.sync_batch_norm",
    ),
    "horovod.tensorflow": (
        "horovod.common.process_sets",
        "horovod.tensorflow.functions",
        "horovod.tensorflow.gradient_aggregation",
        "horovod.tensorflow.mpi_ops",
        "horovod.tensorflow.sync_batch_norm",
    ),
}

#: Names in Horovod's modules that are neither functions nor classes with methods, or that the
#: modules import from others for users.
NAMES = {
    "horovod.keras": [*_HOROVOD_KERAS.split(), "Adasum"],
    "horovod.keras.elastic": ["run"],
    "horovod.tensorflow": HOROVOD_TENSORFLOW,
    "horovod.tensorflow.keras": [*_HOROVOD_KERAS.split(), *_OF_SETS],
    "horovod.tensorflow.keras.elastic": ["run"],
    "horovod.tensorflow.compression": ["Compression"],
    "horovod.torch": HOROVOD_TORCH,
    "horovod.torch.compression": ["Compression"],
    "horovod.torch.elastic": ["ElasticSampler", "TorchState"],
    "horovod.torch.mpi_ops": [
        "handle_average_backwards_compatibility",
        "is_homogeneous",
        "mpi_lib",
    ],
    "horovod.common.exceptions": ["HorovodInternalError"],
    "horovod.common.process_sets": ["global_process_set"],
}

# How well a name is supported.
WORKS = "works"
MORE = "works, and does more"
PART = "works in part"
NOT_HERE = "not here"

_DTYPES = MORE, "also uint8, int8, uint16, int16, bool and bfloat16, and any memory layout"
_LAYOUT = MORE, "also bool and bfloat16, and any memory layout"
_ELASTIC = WORKS, "see [elastic.md](elastic.md)"
_NEVER = WORKS, "always false: only CUDA's GPUs are supported"

#: Notes on a name, in any module, beyond that it works with Horovod's arguments.
EVERYWHERE = {
    "init shutdown": (MORE, "may be called in turns any number of times"),
    "ProcessSet add_process_set": (MORE, "also takes a rule, a function of the world"),
    "start_timeline stop_timeline": (MORE, "needs no variable to be set before"),
    "rocm_built ddl_built ccl_built": _NEVER,
    "cuda_built": (WORKS, "returns whether CUDA's driver can be used here"),
    "nccl_built": (WORKS, "returns the version of the NCCL that can be used here; 0 without one"),
    "mpi_built": (WORKS, "always true: MPI is found when the program starts"),
    "mpi_enabled": (WORKS, "returns whether mpirun or `perseusrun --mpi` started the ranks"),
    "mpi_threads_supported": (WORKS, "returns whether MPI has `MPI_THREAD_MULTIPLE`"),
    "gloo_built": (WORKS, "always true: the built-in transport takes Gloo's place"),
    "gloo_enabled": (WORKS, "returns whether the ranks met without MPI"),
    "elastic horovod.common.elastic.run_fn": _ELASTIC,
}  # fmt: skip

#: Notes on names in horovod.torch and its modules.
OF_TORCH = {
    "Adasum": (MORE, "any number of ranks, not only powers of two; process sets"),
    "allreduce allreduce_ allreduce_async allreduce_async_": _DTYPES,
    "grouped_allreduce grouped_allreduce_": _DTYPES,
    "grouped_allreduce_async grouped_allreduce_async_": _DTYPES,
    "reducescatter reducescatter_async": _DTYPES,
    "grouped_reducescatter grouped_reducescatter_async": _DTYPES,
    "allgather allgather_async grouped_allgather grouped_allgather_async": _LAYOUT,
    "broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async": _LAYOUT,
    "join": (MORE, "at any number of ranks; the others may make any operation meanwhile, except a "
             "broadcast from a rank that has joined"),
    "broadcast_object allgather_object": (MORE, "takes objects of any size and type"),
    "broadcast_parameters": (MORE, "also generators"),
    "broadcast_optimizer_state": (MORE, "takes no step to create a state"),
    "DistributedOptimizer": (MORE, "keeps the optimizer's state and hooks; "
                             "`zero_grad(set_to_none=...)` and `step(closure)` work"),
    "SyncBatchNorm": (MORE, "also on CPUs; a rank may have no rows"),
    "horovod.torch.elastic.run": _ELASTIC,
    "check_extension": (NOT_HERE, "there is no extension module to check"),
    "mpi_lib": (NOT_HERE, "there is no extension module"),
    "handle_average_backwards_compatibility": (NOT_HERE, "internal"),
}  # fmt: skip

#: Notes on names in horovod.tensorflow, horovod.keras and their modules.
OF_TENSORFLOW = {
    "allreduce grouped_allreduce": (MORE, "also uint16, int16, bfloat16 and bool; factors are "
                                    "float64"),
    "reducescatter grouped_reducescatter": (MORE, "also all types that allreduce takes; factors "
                                            "are float64"),
    "allgather grouped_allgather broadcast alltoall": (MORE, "also bfloat16"),
    "DistributedGradientTape PartialDistributedGradientTape": (
        MORE, "keeps the structure of the sources; `groups` may mix types; also takes "
        "`unconnected_gradients` in `gradient`"),
    "broadcast_variables": (MORE, "also variables of Keras 3, and of unsigned and complex types"),
    "broadcast_": (WORKS, "also with `inplace`, through an assignment"),
    "broadcast_object broadcast_object_fn allgather_object": (
        MORE, "needs no session"),
    "SyncBatchNormalization": (MORE, "Keras 2 and 3; weighs ranks by the rows they have"),
    "horovod.tensorflow.elastic.run horovod.tensorflow.keras.elastic.run "
    "horovod.keras.elastic.run": _ELASTIC,
    "horovod.tensorflow.handle_average_backwards_compatibility "
    "check_num_rank_power_of_2 device_compatibility_check": (NOT_HERE, "internal"),
}  # fmt: skip


def _by_name(explained: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {name: said for names, said in explained.items() for name in names.split()}


#: The notes by the beginning of a module's name; the first are those of all modules.
STATES = {
    "horovod": _by_name(EVERYWHERE),
    "horovod.torch": _by_name(OF_TORCH),
    "horovod.tensorflow": _by_name(OF_TENSORFLOW),
    "horovod.keras": _by_name(OF_TENSORFLOW),
}


def find(module: str, name: str) -> Any:
    """Returns what Perseus has under that name; None if nothing."""
    return getattr(importlib.import_module(MODULES[module]), name, None)


def names_of(module: str) -> list[str]:
    """Returns the public names of one of Horovod's modules, in its order if it has one."""
    ours = getattr(importlib.import_module(MODULES[module]), "__all__", [])
    facts = signatures.FACTS.get(module, {"classes": [], "functions": ours})
    return list(dict.fromkeys([*facts["classes"], *facts["functions"], *NAMES.get(module, [])]))


def state(module: str, name: str) -> tuple[str, str]:
    said, note = WORKS, ""
    for beginning, states in STATES.items():
        if f"{module}.".startswith(f"{beginning}."):
            said, note = states.get(f"{module}.{name}", states.get(name, (said, note)))
    there = find(module, name) is not None
    if there == (said == NOT_HERE):
        sys.exit(f"{module}.{name}: EXPLAINED must say what it is, for it is {said}")
    if there:
        differences = different_arguments(module, name)
        if differences and said == WORKS:
            said = MORE
        note = "; ".join(filter(None, [note, *differences])).replace("*", r"\*")
    return said, note


def different_arguments(module: str, name: str) -> list[str]:
    """Returns how the arguments of a function or a class's methods differ from Horovod's.

    The tests check that there are no other differences.
    """
    found = []
    for origin, facts in signatures.FACTS.items():
        if origin != module and origin not in REEXPORTED.get(module, ()):
            continue
        names = [name] if name in facts["functions"] else []
        names += [f"{name}.{method}" for method in facts["classes"].get(name, [])]
        explained = (signatures.EXPLAINED.get(f"{origin}.{each}") for each in names)
        found += [why for why in explained if why]
    return found


def check_explained() -> None:
    """Fails if something is explained that is none of Horovod's names."""
    pairs = [(module, name) for module in MODULES for name in names_of(module)]
    names = {name for _, name in pairs} | {f"{module}.{name}" for module, name in pairs}
    explained = {name for states in STATES.values() for name in states}
    if unknown := explained - names:
        sys.exit(f"these explained names are not Horovod's: {', '.join(sorted(unknown))}")


def names_table(module: str) -> str:
    """Returns a module's table, name by name; names that only Perseus has come last."""
    ours = importlib.import_module(MODULES[module])
    rows = []
    for name in NAMES[module]:
        said, note = state(module, name)
        rows.append(f"| `{name}` | {said} | {note} |")
    for name in sorted(set(ours.__all__) - set(NAMES[module])):
        about = inspect.getdoc(getattr(ours, name)) or ""
        rows.append(f"| `{name}` | only here | {about.partition(chr(10))[0]} |")
    return table(f"| `{module}` | state | |", rows)


def modules_table() -> str:
    """Returns the table of the other modules, without what they share with those of REEXPORTED."""
    rows = []
    for module in sorted(MODULES.keys() - REEXPORTED.keys()):
        by_state: dict[tuple[str, str], list[str]] = {}
        for name in names_of(module):
            if any(
                name in NAMES[main] and find(module, name) is find(main, name)
                for main in REEXPORTED
            ):
                continue
            by_state.setdefault(state(module, name), []).append(f"`{name}`")
        for (said, note), names in by_state.items():
            rows.append(f"| `{module}` | {', '.join(names)} | {said} | {note} |")
    return table("| module | names | state | |", rows)


def missing_table() -> str:
    rows = [f"| `{module}` | {why} |" for module, why in dropin_modules.MISSING.items()]
    return table("| module | why |", rows)


def variables_table() -> str:
    rows = [
        f"| {alias(name)} | `{setting.name}` |"
        for setting in settings()
        for name in setting.aliases
        if name.startswith("HOROVOD_")
    ]
    return table("| Horovod | Perseus |", sorted(rows))


def flags_table() -> str:
    """Makes one row of flags that have the same effect."""
    by_effect: dict[str, list[str]] = {}
    for flag in json.loads((TESTS / "horovodrun_flags.json").read_text()):
        by_effect.setdefault(flag_effect(flag), []).append(f"`{flag}`")
    rows = [f"| {', '.join(flags)} | {what} |" for what, flags in by_effect.items()]
    return table("| horovodrun | perseusrun |", rows)


def flag_effect(flag: str) -> str:
    for option in SETTING_OPTIONS:
        if flag in option.flags:
            value = "" if option.value is None else f"={option.value}"
            return f"sets `{option.setting}{value}`: {option.help}"
    for known, _, why in WITHOUT_MEANING:
        if flag == known:
            return f"changes nothing: {why}"
    for known, _, why in UNSUPPORTED:
        if flag == known:
            return f"refused: {why}"
    action = make_parser()._option_string_actions.get(flag)
    if action is None:
        sys.exit(f"perseusrun does not know {flag}")
    return f"the same: {action.help}"


def diffs() -> str:
    """Returns the differences from each step of the example to the next."""
    texts = []
    for before, after in itertools.pairwise(sorted(STEPS.glob("*.py"))):
        old, _ = parts(before)
        new, about = parts(after)
        title, _, command = about.partition("\n\n")
        lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
        link = f"[{after.name}]({os.path.relpath(after, PAGE.parent)})"
        texts += [f"**{title}**", "", link, "", "```bash", command, "```", ""]
        texts += ["```diff", *lines, "```", ""]
    return "\n".join(texts)


def parts(step: Path) -> tuple[list[str], str]:
    """Returns the lines of the program, and its docstring."""
    text = step.read_text()
    about = ast.get_docstring(ast.parse(text)) or ""
    return text.split('"""\n\n', 1)[1].splitlines(), about


if __name__ == "__main__":
    args = parse_arguments(__doc__)
    check_explained()
    update(
        PAGE,
        {
            "steps": diffs(),
            "variables": variables_table(),
            "flags": flags_table(),
            "names": names_table("horovod.torch"),
            "names-tensorflow": names_table("horovod.tensorflow"),
            "modules": modules_table(),
            "missing": missing_table(),
        },
        check=args.check,
    )
