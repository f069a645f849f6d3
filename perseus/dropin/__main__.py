"""python -m perseus.dropin [-m MODULE | SCRIPT | -c CODE] [ARGUMENT ...]

Runs a Python program in which `import horovod` gives Perseus, and likewise in the programs that it
starts.
"""

from __future__ import annotations

import os
import runpy
import sys

from perseus.dropin import SITE, search_path

USAGE = "usage: python -m perseus.dropin [-m MODULE | SCRIPT | -c CODE] [ARGUMENT ...]"


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    if not arguments or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        sys.exit(USAGE)
    os.environ["PYTHONPATH"] = search_path(os.environ.get("PYTHONPATH"))
    # sys.path[0] is the working folder, as for any `python -m`. What follows stands where `python
    # program` would have it.
    option, *rest = arguments
    if option == "-m":
        sys.path.insert(1, SITE)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.path[0] = ""
        sys.path.insert(1, SITE)
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(option))
        sys.path.insert(1, SITE)
        sys.argv = arguments
        runpy.run_path(option, run_name="__main__")


main()
