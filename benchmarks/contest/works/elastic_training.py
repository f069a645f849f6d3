"""A rank that trains for ever, in an elastic job, and writes down each step."""

import os
import time

import torch

import perseus.torch.horovod as hvd

FEATURES = 1000


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(FEATURES, FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    inputs = torch.ones(8, FEATURES)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.steps", "a") as file:
            while True:
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                print(time.monotonic(), hvd.size(), file=file, flush=True)
                state.step += 1
                state.commit()

    train(state)


if __name__ == "__main__":
    main()
