"""A rank that trains under torchrun, from the last checkpoint, and writes down each step."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

FEATURES = 1000


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder = Path(os.environ["STEPS_FOLDER"])
    checkpoint = folder / "checkpoint.pt"
    model = torch.nn.Linear(FEATURES, FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    inputs = torch.ones(8, FEATURES)
    with (folder / f"{os.getpid()}.steps").open("a") as file:
        while True:
            optimizer.zero_grad()
            parallel(inputs).square().mean().backward()
            optimizer.step()
            print(time.monotonic(), dist.get_world_size(), file=file, flush=True)
            step += 1
            if dist.get_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, folder / "next.pt")
                (folder / "next.pt").replace(checkpoint)


if __name__ == "__main__":
    main()
