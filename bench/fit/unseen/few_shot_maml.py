"""MAML with functional_call: the outer loss goes through the steps inside of each task."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


def conv_net(ways, ch=64):
    layers, cin = [], 3
    for _ in range(4):
        layers += [
            nn.Conv2d(cin, ch, 3, padding=1),
            nn.BatchNorm2d(ch, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        cin = ch
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(ch * 25, ways))


def sample_task(ways=5, shots=5, queries=15, side=84, device="cuda"):
    def part(k):
        return (
            torch.randn(ways * k, 3, side, side, device=device),
            torch.arange(ways, device=device).repeat_interleave(k),
        )

    return part(shots), part(queries)


def adapt(model, params, support, steps, inner_lr):
    x, y = support
    for _ in range(steps):
        loss = F.cross_entropy(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, params.values(), create_graph=True)
        params = {k: p - inner_lr * g for (k, p), g in zip(params.items(), grads)}
    return params


model = conv_net(5).cuda()
meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for iteration in range(4):
    meta_opt.zero_grad()
    outer = 0.0
    for _ in range(2):
        support, (xq, yq) = sample_task()
        fast = adapt(model, dict(model.named_parameters()), support, steps=3, inner_lr=0.01)
        outer = outer + F.cross_entropy(functional_call(model, fast, (xq,)), yq)
    outer = outer / 2
    outer.backward()
    meta_opt.step()
    print("iteration", iteration, "meta loss", outer.item())
