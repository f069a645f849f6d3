"""How each contender looks in all charts: one table of names, colours, marks and their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

DASHED, DOTTED = (4.0, 2.0), (1.5, 1.5)


@dataclass(frozen=True)
class Look:
    """name: as readers know it. colour: of pictures.theme. dashes: lengths on and off."""

    name: str
    colour: str
    marker: str = "o"
    dashes: tuple[float, float] | None = None


#: By label, in the order of legends and bars.
LOOKS = {
    "perseus": Look("Perseus", "blue", "o"),
    "perseus, as its optimizer": Look("Perseus, as its optimizer", "sky", "D"),
    "perseus DDP": Look("Perseus, DDP", "sky", "D"),
    "perseus numpy": Look("Perseus, NumPy", "teal", "s"),
    "perseus C": Look("Perseus, C", "navy", "^"),
    "perseus C, waiting": Look("Perseus, C, waiting", "navy", "^"),
    "perseus C, called back": Look("Perseus, C, called back", "sky", "v", DASHED),
    "perseus tensorflow": Look("Perseus, TensorFlow", "blue", "o"),
    "perseus mxnet": Look("Perseus, MXNet", "blue", "o"),
    "perseus kvstore": Look("Perseus, KVStore", "sky", "D"),
    "perseus, fp16": Look("Perseus, fp16", "teal", "s"),
    "perseus, both off": Look("Perseus, both off", "sky", "D"),
    "perseus, 4 MB first-come": Look("Perseus, 4 MB, first come", "teal", "s"),
    "torch gloo": Look("PyTorch, Gloo", "orange", "o"),
    "torch gloo, 25 MB buckets": Look("PyTorch, Gloo", "orange", "o"),
    "torch gloo DDP": Look("PyTorch, Gloo, DDP", "orange", "o"),
    "horovod gloo": Look("Horovod, Gloo", "red", "o"),
    "horovod gloo, cycle 0": Look("Horovod, Gloo, cycle 0", "pink", "s", DASHED),
    "horovod tensorflow": Look("Horovod, Gloo", "red", "o"),
    "horovod mpi": Look("Horovod, MPI", "purple", "o"),
    "horovod mpi, polling": Look("Horovod, MPI, polling", "violet", "s", DASHED),
    "open mpi C": Look("Open MPI, C", "green", "^"),
    "mpich C": Look("MPICH, C", "brown", "^"),
    "tensorflow multiworker": Look("TensorFlow, MultiWorker", "orange", "s"),
    "mxnet dist_sync": Look("MXNet, dist_sync", "orange", "s"),
    "copy limit": Look("limit: memcpy", "grey", "", DASHED),
    "memory limit": Look("limit: read and write once", "grey", "", DOTTED),
    # The schemes of negotiation.py.
    "coordinator": Look("Coordinator", "brown", "^"),
    "cached-mpi": Look("Horovod, MPI, names cached", "purple", "o"),
    "coordinator-mpi": Look("Horovod, MPI, names new", "violet", "s", DASHED),
    "cached-gloo": Look("Horovod, Gloo, names cached", "red", "o"),
    "coordinator-gloo": Look("Horovod, Gloo, names new", "pink", "s", DASHED),
}
#: What readers call models and collectives, by the names of contest/models.py and contest/works.
NAMES = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "googlenet": "GoogLeNet",
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "ctr": "CTR, 4,000 tensors",
    "cnn": "CNN",
    "resnet": "ResNet",
    "reducescatter": "reduce-scatter",
}
_ORDER = list(LOOKS)
#: What versus.py adds to the label of another build.
OTHER = ", other"


def look(label: str) -> Look:
    base = label.removesuffix(OTHER)
    if base not in LOOKS:
        raise ValueError(f"the contender is {label!r}; it must have a row in {__name__}.LOOKS")
    found = LOOKS[base]
    if base == label:
        return found
    return replace(found, name=found.name + OTHER, marker="x", dashes=DOTTED)


def in_order(labels: Iterable[str]) -> list[str]:
    """Returns each label once, in the order of all charts."""
    return sorted(set(labels), key=lambda one: (_ORDER.index(one.removesuffix(OTHER)), one))
