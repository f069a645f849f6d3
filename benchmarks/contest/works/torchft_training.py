"""A replica that trains under torchft, and writes down each step that it commits."""

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

FEATURES = 1000


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(FEATURES, FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    # In some cases a killed replica is noticed by these time-outs only, which are 60 s by default.
    timeout = timedelta(seconds=5)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        timeout=timeout,
    )
    parallel = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)
    inputs = torch.ones(8, FEATURES)
    with open(f"{os.environ['STEPS_FOLDER']}/{os.getpid()}.steps", "a") as file:
        while True:
            managed.zero_grad()
            parallel(inputs).square().mean().backward()
            before = manager.current_step()
            managed.step()
            if manager.current_step() > before:
                print(time.monotonic(), manager.num_participants(), file=file, flush=True)


if __name__ == "__main__":
    main()
