"""Letters from few examples: MAML of second order with functional_call, two tasks for a step, inner steps differentiated through."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


def conv_block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o, track_running_stats=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def backbone(ways, c=64, size=84):
    return nn.Sequential(
        conv_block(1, c),
        conv_block(c, c),
        conv_block(c, c),
        conv_block(c, c),
        nn.Flatten(),
        nn.Linear(c * 25, ways),
    )


def task(ways, shots, queries):
    proto = torch.rand(ways, 1, 84, 84, device="cuda")
    support = proto.repeat_interleave(shots, 0) + 0.2 * torch.randn(
        ways * shots, 1, 84, 84, device="cuda"
    )
    query = proto.repeat_interleave(queries, 0) + 0.2 * torch.randn(
        ways * queries, 1, 84, 84, device="cuda"
    )
    label = torch.arange(ways, device="cuda")
    return support, label.repeat_interleave(shots), query, label.repeat_interleave(queries)


def adapt(model, params, x, y, lr, steps):
    for _ in range(steps):
        loss = F.cross_entropy(functional_call(model, params, x), y)
        grads = torch.autograd.grad(loss, tuple(params.values()), create_graph=True)
        params = {k: p - lr * g for (k, p), g in zip(params.items(), grads)}
    return params


def main():
    ways, shots, queries, tasks, inner = 10, 5, 15, 2, 4
    model = backbone(ways).cuda()
    meta = torch.optim.Adam(model.parameters(), lr=1e-3)
    for it in range(6):
        meta.zero_grad()
        losses = []
        for _ in range(tasks):
            sx, sy, qx, qy = task(ways, shots, queries)
            fast = adapt(model, dict(model.named_parameters()), sx, sy, 0.01, inner)
            losses.append(F.cross_entropy(functional_call(model, fast, qx), qy))
        loss = torch.stack(losses).mean()
        loss.backward()
        meta.step()
        print(f"{it} meta loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
