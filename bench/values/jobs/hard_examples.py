"""Training on the hard examples of each batch, and early stopping: the batch's size and the number of steps depend on losses."""

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(
    nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
generator = torch.Generator().manual_seed(8)
middles = torch.randn(10, 64, generator=generator) * 2
for step in range(40):
    y = torch.randint(10, (8192,), generator=generator)
    x = (middles[y] + torch.randn(8192, 64, generator=generator) * 3).cuda()
    y = y.cuda()
    with torch.no_grad():
        hard = nn.functional.cross_entropy(model(x), y, reduction="none") > 0.5
    loss = nn.functional.cross_entropy(model(x[hard]), y[hard])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print("step", step, "hard", int(hard.sum()))
    if hard.float().mean() < 0.3:
        print("stopped at", step)
        break
