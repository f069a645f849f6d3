"""The program of each rank of `perseus.run.run`: calls a function and sends back what came of it,
its result or a Raised."""

from __future__ import annotations

import os
import sys

import cloudpickle

from perseus.run.agent import RESULT_FD
from perseus.run.raised import Raised


def main() -> None:
    try:
        function, args, kwargs = cloudpickle.load(sys.stdin.buffer)
        outcome = cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:
        _send(cloudpickle.dumps(Raised.from_exception(error)))
        raise
    _send(outcome)


def _send(outcome: bytes) -> None:
    with os.fdopen(int(os.environ[RESULT_FD]), "wb") as pipe:
        pipe.write(outcome)


if __name__ == "__main__":
    main()
