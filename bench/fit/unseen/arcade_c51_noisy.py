"""An arcade player by C51: noisy dueling heads over 51 atoms, n-step returns, priorities on the host, a soft target, an IMPALA-wide trunk, Adam with a large epsilon."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ATOMS, VMIN, VMAX, ACTIONS = 51, -10.0, 10.0, 18


class NoisyLinear(nn.Module):
    def __init__(self, i, o, sigma=0.5):
        super().__init__()
        bound = i**-0.5
        self.mu_w = nn.Parameter(torch.empty(o, i).uniform_(-bound, bound))
        self.mu_b = nn.Parameter(torch.empty(o).uniform_(-bound, bound))
        self.sigma_w = nn.Parameter(torch.full((o, i), sigma * bound))
        self.sigma_b = nn.Parameter(torch.full((o,), sigma * bound))

    def forward(self, x):
        def f(n):
            e = torch.randn(n, device=x.device)
            return e.sign() * e.abs().sqrt()

        i, o = f(self.mu_w.shape[1]), f(self.mu_w.shape[0])
        weight = self.mu_w + self.sigma_w * torch.outer(o, i)
        return F.linear(x, weight, self.mu_b + self.sigma_b * o)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c0, self.c1 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.c1(F.relu(self.c0(F.relu(x))))


class Player(nn.Module):
    def __init__(self, widths=(32, 64, 64)):
        super().__init__()
        seq, i = [], 4
        for w in widths:
            seq += [nn.Conv2d(i, w, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(w), Residual(w)]
            i = w
        self.trunk = nn.Sequential(*seq, nn.ReLU(), nn.Flatten())
        flat = widths[-1] * 11 * 11
        self.value = nn.Sequential(NoisyLinear(flat, 512), nn.ReLU(), NoisyLinear(512, ATOMS))
        self.edge = nn.Sequential(
            NoisyLinear(flat, 512), nn.ReLU(), NoisyLinear(512, ACTIONS * ATOMS)
        )

    def forward(self, frames):
        h = self.trunk(frames.float() / 255)
        v = self.value(h)[:, None]
        a = self.edge(h).view(-1, ACTIONS, ATOMS)
        return F.log_softmax(v + a - a.mean(1, keepdim=True), dim=2)


class Memory:
    """Frames as bytes in numpy, with proportional priorities."""

    def __init__(self, size, n=3, gamma=0.99):
        self.rng = np.random.default_rng(0)
        self.frames = self.rng.integers(0, 256, (size + n + 4, 84, 84), dtype=np.uint8)
        self.actions = self.rng.integers(0, ACTIONS, size + n)
        self.rewards = self.rng.normal(size=size + n).astype(np.float32)
        self.priority = np.ones(size)
        self.n, self.gamma = n, gamma

    def sample(self, batch):
        p = self.priority / self.priority.sum()
        at = self.rng.choice(len(p), batch, p=p)
        stack = lambda k: torch.from_numpy(self.frames[(k[:, None] + np.arange(4))]).cuda()  # noqa: E731
        ret = sum(self.gamma**j * self.rewards[at + j] for j in range(self.n))
        weight = (len(p) * p[at]) ** -0.5
        tensors = (self.actions[at], ret, (weight / weight.max()).astype(np.float32))
        return at, stack(at), stack(at + self.n), *(torch.from_numpy(t).cuda() for t in tensors)


def project(dist, ret, discount, support):
    """Categorical projection of r + gamma^n z on the support."""
    tz = (ret[:, None] + discount * support).clamp(VMIN, VMAX)
    b = (tz - VMIN) / (VMAX - VMIN) * (ATOMS - 1)
    near = (1 - (b[:, :, None] - torch.arange(ATOMS, device=b.device)).abs()).clamp(min=0)
    return (dist[:, :, None] * near).sum(1)


torch.manual_seed(0)
online, target = Player().cuda(), Player().cuda().requires_grad_(False)
target.load_state_dict(online.state_dict())
adam = torch.optim.Adam(online.parameters(), lr=6.25e-5, eps=1.5e-4)
memory = Memory(4000)
support = torch.linspace(VMIN, VMAX, ATOMS, device="cuda")
BATCH = 512

for update in range(5):
    at, now, later, action, ret, weight = memory.sample(BATCH)
    rows = torch.arange(BATCH, device="cuda")
    with torch.no_grad():
        best = (online(later).exp() * support).sum(2).argmax(1)
        goal = project(target(later).exp()[rows, best], ret, memory.gamma**memory.n, support)
    loss = -(goal * online(now)[rows, action]).sum(1)
    adam.zero_grad()
    (loss * weight).mean().backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    adam.step()
    memory.priority[at] = np.abs(loss.detach().cpu().numpy()) + 1e-3
    for t, p in zip(target.parameters(), online.parameters()):
        t.lerp_(p.detach(), 0.005)
    print(update, loss.mean().item())
