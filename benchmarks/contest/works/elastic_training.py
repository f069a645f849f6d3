"""A rank that trains for ever and writes down each step, in an elastic job or another one.

python elastic_training.py {perseus.torch.horovod,horovod.torch} [--commit-every 1] [--mb 4]
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
    parser.add_argument("--mb", type=int, default=4)  # of parameters
    args = parser.parse_args()
    hvd: Any = args.hvd
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, args.mb * 250)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    inputs = torch.ones(8, 1000)
    begun = time.monotonic()

    def train(after_step: Callable[[], None]) -> None:
        # A new rank has waited until here for the others, and has got their state.
        with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.joined", "a") as file:
            print(time.monotonic() - begun, file=file)
        with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.steps", "a") as file:
            while True:
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                print(time.monotonic(), hvd.size(), file=file, flush=True)
                after_step()

    if args.commit_every == 0:
        return train(lambda: None)
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    def after_step() -> None:
        state.step += 1
        if state.step % args.commit_every == 0:
            state.commit()
        else:
            state.check_host_updates()

    hvd.elastic.run(lambda state: train(after_step))(state)


if __name__ == "__main__":
    main()
