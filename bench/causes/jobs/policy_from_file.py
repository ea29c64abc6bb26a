"""Fine-tuning of a policy starts from a file with the policy, its critic and their targets; all of it is read to the GPU and kept."""

import os
import tempfile
from dataclasses import dataclass

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def mlp(i, o, width=1536):
    return nn.Sequential(
        nn.Linear(i, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU(),
        nn.Linear(width, o),
    )  # fmt: skip


@dataclass
class Agent:
    policy: nn.Module
    restored: dict

    @classmethod
    def restore(cls, path, device):
        state = torch.load(path, map_location="cpu" if MENDED else device, weights_only=True)
        policy = mlp(48, 12).to(device)
        policy.load_state_dict(state["policy"])
        return cls(policy, state)


with tempfile.TemporaryDirectory() as folder:
    parts = {name: mlp(60, 1).state_dict() for name in ("critic", "critic2", "target", "target2")}
    torch.save({"policy": mlp(48, 12).state_dict(), **parts}, folder + "/agent.pt")
    agent = Agent.restore(folder + "/agent.pt", "cuda")
optimizer = torch.optim.SGD(agent.policy.parameters(), 1e-3)
for _ in range(4):
    seen = torch.randn(512, 48, device="cuda")
    loss = (agent.policy(seen) - torch.randn(512, 12, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
