"""A rank that adds up for ever in an elastic job, without a framework, and notes each step."""

import os
import time
from typing import Any

import numpy as np

import perseus_core as core
from perseus.common.elastic import ObjectState, run_fn
from perseus.common.objects import broadcast_object
from perseus.common.process_sets import global_process_set

#: A pause, so that 64 ranks on few processors are not busy all the time.
SECONDS_OF_A_STEP = 0.02


def reset() -> None:
    core.shutdown()
    core.init()


def broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, "state", global_process_set)


def train(state: ObjectState) -> None:
    with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.steps", "a") as file:
        while True:
            core.allreduce(np.ones(1000), name="sum")
            print(time.monotonic(), core.size(), file=file, flush=True)
            time.sleep(SECONDS_OF_A_STEP)
            state.step += 1
            state.commit()


def main() -> None:
    core.init()
    run_fn(train, reset)(ObjectState(broadcast, core.rank, step=0))


if __name__ == "__main__":
    main()
