"""A car that sees and plans: three networks start from parts of one file. The function that reads it remembers what it read."""

import functools
import os
import tempfile

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
PATH = os.path.join(tempfile.mkdtemp(), "generalist.pt")


def perceptron(fan_in, width, fan_out, depth=3):
    layers, size = [], fan_in
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.LayerNorm(width), nn.GELU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, fan_out))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = perceptron(1024, 1280, 256)
        self.foresee = perceptron(256 + 3, 1280, 256)
        self.plan = perceptron(256, 1280, 3)

    def forward(self, lidar):
        seen = self.see(lidar)
        steer = self.plan(seen).tanh()
        return self.foresee(torch.cat([seen, steer], -1)), steer


def write_pretrained():
    """What the cluster left behind: weights, their average, and where Adam was."""
    agent = Agent()
    weights = agent.state_dict()
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in agent.named_parameters()}
    torch.save(
        {
            "agent": weights,
            "average": {n: v.clone() for n, v in weights.items()},
            "adam": moments,
            "steps": 400_000,
        },
        PATH,
    )


@functools.lru_cache(maxsize=None)
def checkpoint(path):
    """The file is large and slow to read, and three networks ask for it."""
    return torch.load(path, map_location="cpu" if MENDED else "cuda")


def start_from(module, name):
    state = {
        k[len(name) + 1 :]: v
        for k, v in checkpoint(PATH)["agent"].items()
        if k.startswith(name + ".")
    }
    module.load_state_dict(state)


def drives(count=4, batch=64):
    g = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.rand(batch, 1024, generator=g), torch.rand(batch, 3, generator=g) * 2 - 1


write_pretrained()
agent = Agent().cuda()
for name, module in agent.named_children():
    start_from(module, name)
print("goes on from step", checkpoint(PATH)["steps"])

optimizer = torch.optim.AdamW(agent.parameters(), lr=1e-4)
for lidar, driver in drives():
    foreseen, steer = agent(lidar.cuda())
    loss = (steer - driver.cuda()).abs().mean() + 1e-3 * foreseen.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
