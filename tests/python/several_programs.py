"""several_programs.py FOLDER MODULE PROGRAMS: runs programs one after the other, as a rank does.

Each is a fork of this process, which has imported MODULE before: to import PyTorch or TensorFlow
takes longer than most of them. PROGRAMS is a list in JSON, of lists: a file and its arguments. They
begin on all ranks together, which meet at pipes in FOLDER, and end as they would by themselves.
Lines of stdout and stderr tell where the output of each begins, and with what status it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Ended:
    """The output of a program's ranks, with the launcher's tags, and all exit statuses."""

    stdout: str
    stderr: str
    statuses: list[int]


def meet(folder: Path, rank: int, size: int) -> None:
    """Returns when all ranks have called it. Opening a pipe waits for its other end."""
    for other in range(1, size) if rank == 0 else ():
        folder.joinpath(f"{other}.here").open("rb").close()
    if rank != 0:
        folder.joinpath(f"{rank}.here").open("wb").close()
        folder.joinpath(f"{rank}.all").open("rb").close()
    for other in range(1, size) if rank == 0 else ():
        folder.joinpath(f"{other}.all").open("wb").close()


def say(text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        print(f"== {text}", file=stream, flush=True)


def main() -> None:
    folder, module, programs = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    rank, size = int(os.environ["PERSEUS_RANK"]), int(os.environ["PERSEUS_SIZE"])
    importlib.import_module(module)
    for number, (program, *arguments) in enumerate(programs):
        meet(folder, rank, size)
        say(f"begins {number}")
        child = os.fork()
        if child == 0:
            sys.argv = [program, *arguments]
            sys.path[0] = str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
            return
        _, status = os.waitpid(child, 0)
        say(f"ended {number}: {os.waitstatus_to_exitcode(status)}")


def run(
    ranks: int,
    module: str,
    programs: Sequence[Sequence[str]],
    folder: Path,
    timeout: float,
    options: Sequence[str] = (),
) -> list[Ended]:
    """Runs them as the ranks of one job of perseusrun, with these options; `folder` is empty."""
    for rank in range(1, ranks):
        for name in ("here", "all"):
            os.mkfifo(folder / f"{rank}.{name}")
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks), *options]
    command = [sys.executable, __file__, str(folder), module, json.dumps(programs)]
    done = subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return [_of_program(number, ranks, done) for number in range(len(programs))]


def _of_program(number: int, ranks: int, done: subprocess.CompletedProcess[str]) -> Ended:
    parts: dict[str, list[str]] = {}
    statuses = []
    for rank in range(ranks):
        for kind, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            tag = rf"\[{rank}\]<{kind}>:"
            found = re.search(
                rf"^{tag}== begins {number}\n(.*?)^{tag}== ended {number}: (-?\d+)$",
                text,
                re.M | re.S,
            )
            assert found, text
            # Lines of other ranks may stand between.
            lines = re.findall(rf"^{tag}.*\n", found[1], re.M)
            parts.setdefault(kind, []).extend(lines)
            statuses.append(int(found[2]))
    return Ended("".join(parts["stdout"]), "".join(parts["stderr"]), statuses)


if __name__ == "__main__":
    main()
