"""Elastic training in the way of Horovod's: see ../test_unchanged_scripts.py.

With a rank as argument, that rank fails once, between two commits.
"""

import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F

BATCH_SIZE = 8
failing = {int(sys.argv[1])} if len(sys.argv) > 1 else set()

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(1)
points = torch.randn(240, 10, generator=generator)
dataset = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 5):  # noqa: B020 (as is usual for Horovod)
        batch_offset = state.batch
        for batch_idx, (data, target) in enumerate(loader):
            state.batch = batch_offset + batch_idx
            if state.epoch == 2 and state.batch == 5 and hvd.rank() in failing:
                failing.clear()
                raise hvd.HorovodInternalError("a rank is lost")
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(batch_idx, BATCH_SIZE)
            if state.batch % 3 == 0:
                state.commit()
        mean = hvd.allreduce(loss, name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} loss {mean:.8f}")
        state.sampler.set_epoch(state.epoch + 1)
        state.batch = 0
        state.commit()


def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = 0.01 * hvd.size()
    print("reset")


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=1, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
