"""Measures another build of Perseus beside this one, in turns.

python benchmarks/versus.py TREE {latency,calls,bandwidth,step} [ARGUMENT...]

TREE is a checkout in which `make build` has run, such as one of the commit before a change. The
program runs with these arguments, and with two contenders for each way to call Perseus: this
tree's and, under the same name with ", other", TREE's. Both run this tree's benchmark. A machine's
speed changes from minute to minute by more than builds differ, so two separate runs cannot be
compared. With this tree as TREE, it shows how far apart the figures of one build are.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from contest import ending
from contest.launch import KNOWN, OPTIMIZER, ROOT, Contender, variant

OURS = (KNOWN["perseus C"], KNOWN["perseus numpy"], KNOWN["perseus"])


def of_tree(contender: Contender, tree: Path) -> Contender:
    """Returns the contender with the package and the library of another tree."""
    return variant(
        contender,
        f"{contender.label}, other",
        PYTHONPATH=os.pathsep.join([str(ROOT / "benchmarks"), str(tree)]),
        PYTHONSAFEPATH="1",  # else this tree, in which the ranks start, comes first
        LD_LIBRARY_PATH=str(tree / "perseus_core/lib"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("program", choices=("latency", "calls", "bandwidth", "step"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    args = parser.parse_args()
    tree = args.tree.resolve()
    if not list((tree / "perseus_core").glob("_engine.*.so")):
        parser.error(f"there is no build of Perseus in {tree}: run `make build` there")
    contenders = [*OURS, *([OPTIMIZER] if args.program == "step" else [])]
    both = [one for ours in contenders for one in (ours, of_tree(ours, tree))]
    KNOWN.update((one.label, one) for one in both)
    module = importlib.import_module(args.program)
    if args.program == "calls":
        waiting, called_back, *peers = module.CONTENDERS
        pairs = [(ours, of_tree(ours, tree)) for ours in (waiting, called_back)]
        module.CONTENDERS = (*(one for pair in pairs for one in pair), *peers)
        options = []
    elif args.program == "step":
        module.AT_ONCE["torch"] = tuple(one for one in both if not one.compiled)
        options = ["--only", "at-once"]
    else:
        options = ["--contenders", *(one.label for one in both)]
    sys.argv = [f"{args.program}.py", *args.arguments, *options]
    module.main()


if __name__ == "__main__":
    with ending.by_exception():
        main()
