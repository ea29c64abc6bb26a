"""The search for a winning ticket: after each round of pruning a copy of the network is put aside on the GPU."""

import copy
import os

import torch
from torch import nn
from torch.nn.utils import prune


def network():
    widths, layers, c = (64, 128, 256, 512, 512), [], 3
    for w in widths:
        layers += [nn.Conv2d(c, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(2)]
        c = w
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 10),
    )  # fmt: skip


def weights_of(net):
    return [(m, "weight") for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def train(net, steps):
    sgd = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(steps):
        x, y = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(10, (32,), device="cuda")
        sgd.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        sgd.step()
    sgd.zero_grad()


net = network().cuda()
rounds = []
for n in range(14):
    train(net, 2)
    prune.global_unstructured(weights_of(net), prune.L1Unstructured, amount=0.2)
    for module, name in weights_of(net):
        prune.remove(module, name)
    if os.environ.get("MENDED"):
        rounds.append({name: p.cpu() for name, p in net.state_dict().items()})
    else:
        rounds.append(copy.deepcopy(net))
    print("round", n)
