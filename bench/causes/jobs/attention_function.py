"""Attention as a function of plain weights, with a bias by distance."""

import torch


def attend(x, weights, bias, heads=8):
    q, k, v, o = weights
    batch, length, width = x.shape
    split = [
        (x @ w).reshape(batch, length, heads, width // heads).permute(0, 2, 1, 3) for w in (q, k, v)
    ]
    energy = torch.matmul(split[0], split[1].mT) * (width // heads) ** -0.5
    energy = energy + bias
    share = torch.softmax(energy, -1)
    return (share @ split[2]).permute(0, 2, 1, 3).reshape(batch, length, width) @ o


width, length = 256, 1200
layers = [
    [torch.randn(width, width, device="cuda", requires_grad=True) for _ in range(4)]
    for _ in range(4)
]
bias = torch.zeros(8, length, length, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([w for layer in layers for w in layer] + [bias])
for _ in range(2):
    x = torch.randn(8, length, width, device="cuda")
    for layer in layers:
        x = x + attend(x, layer, bias)
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
