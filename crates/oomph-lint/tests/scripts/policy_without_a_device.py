"""A policy that is moved to its `device`, which is the CPU unless somebody says otherwise."""
import torch
from torch import nn

try:
    import cudaq
except ImportError:
    cudaq = None


class PolicyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def train(states, device="cpu"):
    policy = PolicyNet().to(device)
    optimizer = torch.optim.Adam(policy.parameters())
    if cudaq is not None:
        print(cudaq.get_target())
    for state in states:
        loss = -policy(state.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train([])
