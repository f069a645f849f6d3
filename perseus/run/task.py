"""The program of each rank of `perseus.run.run`: calls a function and sends back its result."""

from __future__ import annotations

import os
import sys

import cloudpickle

from perseus.run.agent import RESULT_FD


def main() -> None:
    function, args, kwargs = cloudpickle.load(sys.stdin.buffer)
    result = cloudpickle.dumps(function(*args, **kwargs))
    with os.fdopen(int(os.environ[RESULT_FD]), "wb") as pipe:
        pipe.write(result)


if __name__ == "__main__":
    main()
