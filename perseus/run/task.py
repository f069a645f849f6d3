"""The program of each rank of `perseus.run.run`: calls a function and sends back what came of it,
its result or a Raised."""

from __future__ import annotations

import os
import sys

import cloudpickle

from perseus.run.agent_protocol import RESULT_FD
from perseus.run.raised import Raised


def main() -> None:
    result_fd = int(os.environ.pop(RESULT_FD))
    # Nothing that the function starts can write into its result.
    os.set_inheritable(result_fd, False)
    os.register_at_fork(after_in_child=lambda: os.close(result_fd))
    try:
        function, args, kwargs = cloudpickle.load(sys.stdin.buffer)
        outcome = cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:
        _send(cloudpickle.dumps(Raised.from_exception(error)), result_fd)
        raise
    _send(outcome, result_fd)


def _send(outcome: bytes, fd: int) -> None:
    with os.fdopen(fd, "wb") as pipe:
        pipe.write(outcome)


if __name__ == "__main__":
    main()
