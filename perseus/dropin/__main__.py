"""python [OPTION ...] -m perseus.dropin [-m MODULE | SCRIPT | -c CODE] [ARGUMENT ...]
python -m perseus.dropin --run COMMAND [ARGUMENT ...]

Runs a Python program in which `import horovod` gives Perseus, and likewise in the programs that it
starts. Nothing else about it differs from `python [OPTION ...] SCRIPT`.

With --run, runs any command, such as `horovodrun -np 4 python train.py`, a test runner or a shell,
in whose Python programs it is so.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from perseus.dropin import environment, shadow

USAGE = (
    "usage: python -m perseus.dropin [-m MODULE | SCRIPT | -c CODE | --run COMMAND] [ARGUMENT ...]"
)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    if not arguments or (arguments[0] in ("-m", "-c", "--run") and len(arguments) < 2):
        sys.exit(USAGE)
    if sys.flags.ignore_environment:
        sys.exit("perseus.dropin: it needs PYTHONPATH, which python -E and -I ignore")
    if arguments[0] == "--run":
        os.environ.update(environment(os.environ))
        _run(arguments[1:])
    if shadowed := shadow(arguments):
        sys.exit(f"perseus.dropin: {shadowed}")
    os.environ.update(environment(os.environ))
    # Python itself runs the program, so that __main__, sys.argv and all else are as usual.
    os.execv(sys.executable, [sys.executable, *_interpreter_options(len(arguments)), *arguments])


def _run(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"perseus.dropin: {command[0]} cannot be run: {error.strerror}")


def _interpreter_options(count: int) -> list[str]:
    """Returns the options of this Python's command line, which ends in `count` arguments."""
    *options, module = sys.orig_argv[1 : len(sys.orig_argv) - count]
    if module.startswith("-") or not options:  # -mperseus.dropin
        return options
    *options, last = options  # -m, or -um and the like
    return options if last == "-m" else [*options, last.removesuffix("m")]


main()
