"""Step 2: several processes learn it, with a script for Horovod that runs on Perseus unchanged.

perseusrun --drop-in -np 2 python examples/torch/08_migrating/2_horovod.py
"""

import sys

import horovod.torch as hvd
import torch
from torch import nn

EPOCHS, BATCH = 40, 60

hvd.init()
torch.set_num_threads(1)  # one process a core
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

labels = torch.arange(600) % 2
angles = 6 * torch.rand(600).sqrt()
turned = angles + torch.pi * labels
points = torch.stack([angles * turned.cos(), angles * turned.sin()], dim=1) / 6

model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(EPOCHS):
    generator = torch.Generator().manual_seed(epoch)
    for batch in torch.randperm(600, generator=generator).split(BATCH):
        batch = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points[batch]), labels[batch])
        loss.backward()
        optimizer.step()

with torch.no_grad():
    outputs = model(points)
loss = nn.functional.cross_entropy(outputs, labels).item()
accuracy = (outputs.argmax(dim=1) == labels).double().mean().item()
if hvd.rank() == 0:
    print(f"loss {loss:.8f}, accuracy {100 * accuracy:.1f} %")
if accuracy < 0.98:
    sys.exit("the spirals are not told apart")
