"""Training goes on from a checkpoint with averaged weights; the file stays on the GPU."""

import io

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, width=1536, depth=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x)).relu()
        return x


def saved():
    tower, file = Tower(), io.BytesIO()
    state = tower.state_dict()
    torch.save({"net": state, "average": {k: v.clone() for k, v in state.items()}}, file)
    file.seek(0)
    return file


class Run:
    def __init__(self, file):
        self.snapshot = torch.load(file, map_location=lambda storage, _: storage.cuda())
        self.net = Tower().to("cuda")
        self.net.load_state_dict(self.snapshot["net"])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self, batch):
        loss = self.net(torch.randn(batch, 1536, device="cuda")).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


run = Run(saved())
for batch in (8, 16, 32, 64, 128):
    run.step(batch)
