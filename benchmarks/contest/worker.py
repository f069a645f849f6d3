"""python -m contest.worker CONTENDER: runs in each rank of a contender in Python.

It initialises contest.contenders.CONTENDER, connects to the Unix socket $BENCH_SOCKET (a path, so
that other network namespaces can reach it), says `hello RANK SIZE PID`, and answers lines. It
answers `run WORK key=value ...` with `times t0 t1 ...`, microseconds of each iteration, or `error
TEXT`, and exits on `end`. contenders/serve.h is its counterpart in C.
"""

from __future__ import annotations

import importlib
import os
import shlex
import socket
import sys
from typing import Any

from contest import ending, works


def value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def answer(contender: Any, line: str) -> str:
    work, *words = shlex.split(line)
    options = {name: value(text) for name, _, text in (word.partition("=") for word in words)}
    try:
        times = works.find(work)(contender, **options)
    except Exception as error:
        # Any error is reported in the table: a contender may lack an operation, for example.
        return f"error {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "times " + " ".join(f"{time:.2f}" for time in times)


def main() -> None:
    ending.with_parent()  # the parent may be an mpirun, which dies with the conductor
    contender = importlib.import_module(f"contest.contenders.{sys.argv[1]}").Contender()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["BENCH_SOCKET"])
        lines = connection.makefile("rw")
        print(f"hello {contender.rank} {contender.size} {os.getpid()}", file=lines, flush=True)
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            if command == "end":
                break
            print(answer(contender, rest), file=lines, flush=True)
    contender.close()


if __name__ == "__main__":
    main()
