"""A pipeline: a CNN whose layers are on several ranks, and replicas of it beside each other.

    perseusrun -np 4 python examples/torch/10_pipeline.py

The ranks measure how long each layer takes, and cut the network so that no stage is much slower
than the others. With 4, 6 or 8 ranks, two replicas share each batch, and average their gradients.
The first step's gradients are compared with those of one process.
"""

from __future__ import annotations

import digits
import torch
from checks import require
from torch.nn import functional as F

import perseus.torch.horovod as hvd
from perseus.pipeline import Pipeline

EPOCHS, BATCH = 2, 48


def gradients_of_one_process(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    model = digits.make_model()
    F.cross_entropy(model(images), labels).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main() -> None:
    hvd.init(process_sets="dynamic")
    torch.set_num_threads(1)  # one process a core
    replicas = 2 if hvd.size() in (4, 6, 8) else 1
    mesh = (replicas, hvd.size() // replicas)
    replica = hvd.rank() // mesh[1]
    data, test = digits.load()
    images, labels = data.tensors

    pipeline = Pipeline(
        digits.make_model(),
        loss_fn=F.cross_entropy,
        schedule="1f1b",
        microbatches=2 * mesh[1],
        split="balanced",
        sample=images[: BATCH // replicas // (2 * mesh[1])],
        mesh=mesh,
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.08, momentum=0.9)
    optimizer = pipeline.distributed(optimizer)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for number, batch in enumerate(order.split(BATCH)):
            own = batch.chunk(replicas)[replica]
            optimizer.zero_grad()
            loss = pipeline.step(images[own], labels[own])  # on every rank, of the whole batch
            optimizer.step()
            if epoch == number == 0:
                expected = gradients_of_one_process(images[batch], labels[batch])
                for name, parameter in pipeline.named_parameters():
                    close = torch.allclose(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)
                    require(close, f"{name} has another gradient than in one process")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss of the last batch {loss:.3f}", flush=True)

    outputs = pipeline.predict(test.tensors[0])  # on the ranks with the last stage
    right = None if outputs is None else (outputs.argmax(1) == test.tensors[1]).double().mean()
    accuracy = hvd.broadcast_object(right, root_rank=mesh[1] - 1).item()
    report = pipeline.report()
    if hvd.rank() == 0:
        print(report)
        print(f"{mesh[0]} x {mesh[1]} ranks: test accuracy {100 * accuracy:.1f} %")
    require(accuracy > 0.9, "the digits were not learnt")


if __name__ == "__main__":
    main()
