"""Surrogate of a particle-in-a-box plasma: encode-process-decode graph net, neighbours by numpy."""

import os
from collections import deque

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
PARTICLES, HISTORY, RADIUS = 3200, 5, 0.105
SIMULATIONS_PER_BATCH, WIDTH, ROUNDS = 3, 256, 12
rng = np.random.default_rng(3)


def simulate(frames=24):
    """Particles that drift in a unit box with reflecting walls and a slow swirl."""
    x = rng.random((PARTICLES, 3))
    v = rng.normal(0, 0.004, (PARTICLES, 3))
    track = np.empty((frames, PARTICLES, 3), np.float32)
    for t in range(frames):
        swirl = np.stack([0.5 - x[:, 1], x[:, 0] - 0.5, 0 * x[:, 2]], 1)
        v = 0.99 * v + 0.0006 * swirl + rng.normal(0, 1e-4, v.shape)
        x = x + v
        outside = (x < 0) | (x > 1)
        v[outside] *= -1
        x = np.clip(x, 0, 1)
        track[t] = x
    return track


def neighbours(x, radius):
    """Pairs nearer than radius: particles sorted into cells, half of the 27 cells searched."""
    side = int(1 / radius)
    cell = np.minimum((x * side).astype(np.int64), side - 1)
    key = (cell[:, 0] * side + cell[:, 1]) * side + cell[:, 2]
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(side**3 + 1))
    senders, receivers = [], []
    for shift in list(np.ndindex(3, 3, 3))[13:]:
        other = cell + np.array(shift) - 1
        good = np.flatnonzero(((other >= 0) & (other < side)).all(1))
        k = (other[good, 0] * side + other[good, 1]) * side + other[good, 2]
        first, count = starts[k], starts[k + 1] - starts[k]
        r = np.repeat(good, count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        s = order[np.repeat(first, count) + offset]
        d = x[s] - x[r]
        near = (d * d).sum(1) < radius * radius
        if shift == (1, 1, 1):
            near &= s < r
        senders += [s[near], r[near]]
        receivers += [r[near], s[near]]
    return np.concatenate(senders), np.concatenate(receivers)


def make_batch(tracks):
    nodes, targets, sends, receives, edges = [], [], [], [], []
    for b in range(SIMULATIONS_PER_BATCH):
        track = tracks[rng.integers(len(tracks))]
        t = rng.integers(HISTORY + 1, len(track) - 1)
        window = track[t - HISTORY : t + 1]
        window = window + rng.normal(0, 3e-4, window.shape).astype(np.float32).cumsum(0)
        velocity = np.diff(window, axis=0)
        x = window[-1]
        walls = np.clip(np.concatenate([x, 1 - x], 1) / RADIUS, -1, 1)
        nodes.append(np.concatenate([velocity.transpose(1, 0, 2).reshape(len(x), -1), walls], 1))
        targets.append((track[t + 1] - x - velocity[-1]) * 1e3)
        s, r = neighbours(np.clip(x, 0, 1), RADIUS)
        d = (x[s] - x[r]) / RADIUS
        edges.append(np.concatenate([d, np.linalg.norm(d, axis=1, keepdims=True)], 1))
        sends.append(s + b * PARTICLES)
        receives.append(r + b * PARTICLES)
    arrays = [np.concatenate(a) for a in (nodes, edges, sends, receives, targets)]
    return [torch.from_numpy(a).to("cuda") for a in arrays]


def mlp(inputs, outputs=WIDTH, norm=True):
    layers = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    layers += [nn.Linear(WIDTH, outputs)] + ([nn.LayerNorm(outputs)] if norm else [])
    return nn.Sequential(*layers)


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.node_in, self.edge_in = mlp(3 * HISTORY + 6), mlp(4)
        self.edge_mlps = nn.ModuleList(mlp(3 * WIDTH) for _ in range(ROUNDS))
        self.node_mlps = nn.ModuleList(mlp(2 * WIDTH) for _ in range(ROUNDS))
        self.out = mlp(WIDTH, 3, norm=False)

    def forward(self, nodes, edges, s, r):
        h, e = self.node_in(nodes), self.edge_in(edges)
        for edge_mlp, node_mlp in zip(self.edge_mlps, self.node_mlps):
            message = edge_mlp(torch.cat([e, h[s], h[r]], 1))
            pooled = torch.zeros_like(h).index_add_(0, r, message)
            h = h + node_mlp(torch.cat([h, pooled], 1))
            e = e + message
        return self.out(h)


torch.manual_seed(3)
tracks = [simulate() for _ in range(4)]
model = Surrogate().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1 ** (1 / 20_000))
recent = deque(maxlen=100)
for step in range(STEPS):
    nodes, edges, s, r, target = make_batch(tracks)
    loss = (model(nodes.float(), edges.float(), s, r) - target.float()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    recent.append(loss.item())
    print(
        f"{step}: loss {recent[-1]:.4f}, mean {np.mean(recent):.4f}, {len(s)} edges, |g| {norm:.2f}"
    )
