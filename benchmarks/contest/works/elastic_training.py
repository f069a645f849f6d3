"""A rank that trains for ever and writes down each step, in an elastic job or another one.

python elastic_training.py {perseus.torch.horovod,horovod.torch} [--commit-every 1] [--frozen-mb 0]

Each time that it begins to train in a world, PID.entered gets a line: the moment, the seconds since
the program was about to train, and the seconds in which the state was synced and saved.
"""

import argparse
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hvd", type=importlib.import_module)
    parser.add_argument("--commit-every", type=int, default=1)  # 0: without a state
    parser.add_argument("--frozen-mb", type=int, default=0)  # besides 4 MB that are trained
    args = parser.parse_args()
    hvd: Any = args.hvd
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for number in range(10 if args.frozen_mb else 0):  # in tensors, as those of a model's layers
        model.register_buffer(f"frozen{number}", torch.ones(args.frozen_mb * 25_000))
    inputs = torch.ones(8, 1000)
    synced = 0.0  # seconds of the last sync
    about_to = 0.0

    def train(number_of_step: Callable[[], int], after_step: Callable[[], None]) -> None:
        nonlocal synced
        with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.entered", "a") as file:
            now = time.monotonic()
            print(now, now - about_to, synced, file=file)
            synced = 0.0
        with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.steps", "a") as file:
            while True:
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                print(time.monotonic(), hvd.size(), number_of_step(), file=file, flush=True)
                after_step()

    if args.commit_every == 0:
        return train(lambda: 0, lambda: None)
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    def after_step() -> None:
        state.step += 1
        if state.step % args.commit_every == 0:
            state.commit()
        else:
            state.check_host_updates()

    sync = state.sync

    def timed_sync() -> None:
        nonlocal synced
        began = time.monotonic()
        sync()
        synced = time.monotonic() - began

    state.sync = timed_sync
    about_to = time.monotonic()
    hvd.elastic.run(lambda state: train(lambda: state.step, after_step))(state)


if __name__ == "__main__":
    main()
