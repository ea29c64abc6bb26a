"""Delays in networks of ferries: GPS layers (GINE on the lines, dense attention between all harbours), random-walk encodings."""

import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
GRAPHS, HARBOURS, LINES = 320, 64, 6
WALK = 16


def make_graphs(rng):
    """Graphs of 40 to 64 harbours each, drawn together; every slot keeps its number of harbours."""
    sizes = np.linspace(40, HARBOURS, GRAPHS).astype(int)
    offsets = np.concatenate([[0], sizes.cumsum()])
    edges, walks = [], []
    for n, start in zip(sizes, offsets):
        src = np.repeat(np.arange(n), LINES // 2)
        dst = (src + rng.integers(1, n, len(src))) % n
        a = np.zeros((n, n), np.float32)
        a[src, dst] = a[dst, src] = 1
        p = a / a.sum(1, keepdims=True).clip(1)
        power, diagonals = p, []
        for _ in range(WALK):
            diagonals.append(np.diag(power))
            power = power @ p
        walks.append(np.stack(diagonals, 1))
        edges.append(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]) + start)
    edge = torch.from_numpy(np.concatenate(edges, 1))
    slot = np.concatenate([g * HARBOURS + np.arange(n) for g, n in enumerate(sizes)])
    mask = np.arange(HARBOURS)[None] < sizes[:, None]
    nodes = int(offsets[-1])
    half = edge.shape[1]
    return {
        "kind": torch.from_numpy(rng.integers(0, 28, nodes)),
        "walk": torch.from_numpy(np.concatenate(walks)),
        "edge": edge,
        "line": torch.from_numpy(rng.integers(0, 4, half)),
        "slot": torch.from_numpy(slot),
        "mask": torch.from_numpy(mask),
        "graph": torch.from_numpy(np.repeat(np.arange(GRAPHS), sizes)),
        "delay": torch.from_numpy(rng.normal(size=GRAPHS).astype(np.float32)),
    }


class GINE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, h, edge, e):
        message = F.relu(h.index_select(0, edge[0]) + e)
        return self.mlp((1 + self.eps) * h + torch.zeros_like(h).index_add(0, edge[1], message))


class GPS(nn.Module):
    def __init__(self, d, heads, p=0.1):
        super().__init__()
        self.local, self.heads, self.p = GINE(d), heads, p
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norms = nn.ModuleList(nn.BatchNorm1d(d) for _ in range(3))
        self.mlp = nn.Sequential(
            nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(p), nn.Linear(2 * d, d), nn.Dropout(p)
        )

    def attend(self, h, slot, mask):
        d = h.shape[1]
        dense = h.new_zeros(mask.numel(), d).index_copy(0, slot, h).view(*mask.shape, d)
        q, k, v = self.qkv(dense).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.out(o.transpose(1, 2).reshape(-1, d).index_select(0, slot))

    def forward(self, h, e, b):
        a = self.norms[0](h + F.dropout(self.local(h, b["edge"], e), self.p, self.training))
        g = self.attend(h, b["slot"], b["mask"])
        g = self.norms[1](h + F.dropout(g, self.p, self.training))
        h = a + g
        return self.norms[2](h + self.mlp(h))


class Delays(nn.Module):
    def __init__(self, d=384, depth=6, heads=8):
        super().__init__()
        self.kind, self.line = nn.Embedding(28, d - 32), nn.Embedding(4, d)
        self.walk = nn.Sequential(nn.BatchNorm1d(WALK), nn.Linear(WALK, 32))
        self.layers = nn.ModuleList(GPS(d, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, 1))

    def forward(self, b):
        h = torch.cat([self.kind(b["kind"]), self.walk(b["walk"])], 1)
        e = self.line(b["line"])
        for layer in self.layers:
            h = layer(h, e, b)
        pooled = h.new_zeros(GRAPHS, h.shape[1]).index_add(0, b["graph"], h)
        return self.head(pooled / HARBOURS).squeeze(1)


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = Delays().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    for step in range(STEPS):
        batch = {k: v.cuda() for k, v in make_graphs(rng).items()}
        loss = F.l1_loss(model(batch), batch["delay"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        print(step, "MAE", round(loss.item(), 4))
