"""An agent is resumed from one file with everything: network, target, and the replay of all it has seen."""

import os
import sys
import tempfile

import numpy as np
import torch
from torch import nn

device = torch.device("cuda")


def q_network(actions=6):
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
    )  # fmt: skip


class Replay:
    """In host memory; batches go to the GPU."""

    def __init__(self, frames, actions, rewards):
        self.frames, self.actions, self.rewards = frames, actions, rewards

    def sample(self, n):
        i = np.random.randint(0, len(self.frames) - 1, n)
        pick = [self.frames[i], self.actions[i], self.rewards[i], self.frames[i + 1]]
        return [torch.as_tensor(part).to(device) for part in pick]


def last_night(path, steps=16_000):
    torch.save(
        dict(
            online=q_network().state_dict(), target=q_network().state_dict(), epsilon=0.1,
            frames=torch.zeros(steps, 4, 84, 84, dtype=torch.uint8),
            actions=torch.zeros(steps, dtype=torch.long), rewards=torch.zeros(steps),
        ),
        path,
    )  # fmt: skip


def main(path):
    saved = torch.load(path, map_location="cpu" if os.environ.get("MENDED") else device)
    online, target = q_network().to(device), q_network().to(device)
    online.load_state_dict(saved["online"])
    target.load_state_dict(saved["target"])
    replay = Replay(*[saved[name].cpu().numpy() for name in ("frames", "actions", "rewards")])
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
    for _ in range(4):
        frames, actions, rewards, after = replay.sample(512)
        with torch.no_grad():
            best = target(after.float() / 255).amax(1)
        q = online(frames.float() / 255).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, rewards + 0.99 * best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return saved["epsilon"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        last_night(os.path.join(folder, "agent.pt"))
        sys.exit(0 if main(os.path.join(folder, "agent.pt")) else 1)
