"""Pictures of ants grown by a neural cellular automaton: fixed filters, random cells asleep, a pool of states on the CPU, a random number of ticks, gradients normalized by tensor."""

import random

import numpy as np
import torch
import torch.nn.functional as F

CH, SIDE, BATCH, POOL = 32, 112, 10, 128
device = "cuda"
random.seed(12)

sobel = torch.outer(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0])) / 8
point = torch.zeros(3, 3)
point[1, 1] = 1.0
filters = torch.stack([point, sobel, sobel.t()])[:, None].repeat(CH, 1, 1, 1).to(device)

rule = torch.nn.Sequential(
    torch.nn.Conv2d(3 * CH, 160, 1), torch.nn.ReLU(), torch.nn.Conv2d(160, CH, 1, bias=False)
).to(device)
torch.nn.init.zeros_(rule[2].weight)


def alive(x):
    return F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1


def tick(x):
    before = alive(x)
    seen = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), filters, groups=CH)
    awake = (torch.rand(x.shape[0], 1, SIDE, SIDE, device=device) < 0.5).float()
    x = x + rule(seen) * awake
    return x * (before & alive(x)).float()


def target():
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    body = sum(np.exp(-40 * ((x - c) ** 2 + y**2)) for c in (-0.5, 0.0, 0.5))
    legs = (np.abs(np.sin(9 * x)) < 0.15) * (np.abs(y) < 0.6)
    alpha = np.clip(body + legs, 0, 1)
    return torch.tensor(
        np.stack([alpha * 0.3, alpha * 0.1, alpha * 0.05, alpha]), dtype=torch.float32
    )


seed = torch.zeros(CH, SIDE, SIDE)
seed[3:, SIDE // 2, SIDE // 2] = 1.0
pool = seed.repeat(POOL, 1, 1, 1)
goal = target().to(device)
opt = torch.optim.Adam(rule.parameters(), lr=2e-3)
drop = torch.optim.lr_scheduler.MultiStepLR(opt, [2000, 4000], 0.3)

for step in range(4):
    chosen = torch.randperm(POOL)[:BATCH]
    x = pool[chosen].to(device)
    x[0] = seed.to(device)
    if step > 2:
        x[-2:, :, 40:70, 40:70] = 0
    ticks = random.randint(14, 20)
    for _ in range(ticks):
        x = tick(x)
    loss = (x[:, :4] - goal).square().mean()
    opt.zero_grad()
    loss.backward()
    for p in rule.parameters():
        p.grad /= p.grad.norm() + 1e-8
    opt.step()
    drop.step()
    pool[chosen] = x.detach().cpu()
    print(f"{step}: {ticks} ticks, loss {loss.item():.4f}")
