"""Selective checkpointing of a mixer for road traffic. The list of what is dear to compute again has grown."""

import os
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
DEAR = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
    aten.native_layer_norm.default, aten.gelu.default, aten.add.Tensor, aten.mul.Tensor,
    aten.clone.default, aten.sigmoid.default, aten.native_dropout.default,
}  # fmt: skip
if os.environ.get("MENDED"):
    DEAR = set()


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in DEAR else CheckpointPolicy.PREFER_RECOMPUTE


class Mixer(nn.Module):
    def __init__(self, sensors, times, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_time = nn.Sequential(nn.Linear(times, 2 * times), nn.GELU(), nn.Linear(2 * times, times))  # fmt: skip
        self.over_width = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))  # fmt: skip
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        x = x + self.over_time(self.n1(x).transpose(-1, -2)).transpose(-1, -2)
        return x + self.over_width(self.n2(x)) * torch.sigmoid(self.gate(x))


class Traffic(nn.Module):
    def __init__(self, sensors=207, times=48, width=64, depth=16):
        super().__init__()
        self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 1)
        self.mixers = nn.ModuleList(Mixer(sensors, times, width) for _ in range(depth))

    def forward(self, x):
        contexts = partial(create_selective_checkpoint_contexts, policy)
        x = self.enter(x)
        for mixer in self.mixers:
            x = checkpoint(mixer, x, use_reentrant=False, context_fn=contexts)
        return self.leave(x).squeeze(-1)


model = Traffic().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(3):
    speeds = torch.rand(10, 207, 48, 2, device="cuda")
    later = torch.rand(10, 207, 48, device="cuda")
    loss = (model(speeds) - later).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
