"""Compares Perseus with Horovod, name by name and argument by argument.

horovod_signatures.json has the public ones of Horovod 0.28.1, as text. Those for MXNet are compared
in its environment, by `make mxnet-tests`.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perseus.dropin.modules import MODULES

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "horovod_signatures.json").read_text())

#: Intended differences, and the reasons. Any other difference fails.
EXPLAINED = {
    "horovod.mxnet.mpi_ops.init": "Horovod passes on *args and **kwargs; here they are named",
    "horovod.runner.run": "also takes environment and grace",
    "horovod.tensorflow.mpi_ops.init": "Horovod passes on *args and **kwargs; here they are named",
    "horovod.tensorflow.sync_batch_norm.SyncBatchNormalization.call": "has Keras's arguments",
    "horovod.torch.elastic.sampler.ElasticSampler.__init__": "also takes last_round",
    "horovod.torch.elastic.state.TorchState.__init__": "also takes copies",
    "horovod.torch.functions.allgather_object": "also takes a process_set",
    "horovod.torch.functions.broadcast_optimizer_state": "also takes a process_set",
    "horovod.torch.functions.broadcast_parameters": "also takes a process_set",
    "horovod.torch.optimizer.DistributedOptimizer": "also takes overlap_forward",
    "horovod.torch.mpi_ops.init": "Horovod passes on *args and **kwargs; here they are named",
    "horovod.torch.mpi_ops.shutdown": "takes nothing; Horovod passes on *args and **kwargs",
}


def theirs() -> Iterator[tuple[str, str, str]]:
    """Module, name within it ("Class.method" for methods), and signature."""
    for module, names in FACTS.items():
        for name, signature in names["functions"].items():
            yield module, name, signature
        for name, methods in names["classes"].items():
            yield from ((module, f"{name}.{method}", text) for method, text in methods.items())


def ours(module: str, name: str) -> Any:
    found = importlib.import_module(MODULES[module])
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    return found


def parameters(function: Any) -> list[str]:
    """The arguments as text, without types; defaults as Horovod writes them."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    texts = []
    for parameter in inspect.signature(function).parameters.values():
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        )
        default = "" if parameter.default is parameter.empty else f"={shown(parameter.default)}"
        texts.append(f"{prefix}{parameter.name}{default}")
    return texts


def shown(default: Any) -> str:
    from perseus.common.compression import NoneCompressor
    from perseus.common.process_sets import global_process_set

    if default is global_process_set:
        return "global_process_set"
    if default is NoneCompressor:
        return "Compression.none"
    return repr(default)


def their_parameters(signature: str) -> list[str]:
    inner = signature[signature.index("(") + 1 : signature.rindex(")")]
    # Average is 0, for Horovod as for us.
    return [part.strip().replace("=Average", "=0") for part in split(inner)]


def split(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


@pytest.mark.parametrize(
    ("module", "name", "signature"),
    [pytest.param(*entry, id=".".join(entry[:2])) for entry in theirs()],
)
def test_same_signature(module: str, name: str, signature: str) -> None:
    framework = module.split(".")[1]
    if framework in ("mxnet", "keras", "tensorflow"):
        # Python may take the folder tests/python/tensorflow for that package; Keras comes with it.
        pytest.importorskip(framework.replace("tensorflow", "keras"))
    differs = parameters(ours(module, name)) != their_parameters(signature)
    explained = f"{module}.{name}" in EXPLAINED
    if differs and not explained:
        raise AssertionError(f"{parameters(ours(module, name))} is not {signature}")
    assert differs or not explained, "the explanation is no longer needed"
