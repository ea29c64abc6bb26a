# Depth and semantic segmentation of rooms from one trunk (dilated ResNet-50), gradients of the two
# tasks reconciled on the shared weights as PCGrad does: two backward passes over one graph.
import random

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter

BATCH, HEIGHT, WIDTH, CLASSES = 12, 288, 384, 13


class SharedTrunk(nn.Module):
    def __init__(self):
        super().__init__()
        net = resnet50(weights=None, replace_stride_with_dilation=[False, True, True])
        self.layers = IntermediateLayerGetter(
            net, return_layers={"layer1": "low", "layer4": "high"}
        )

    def forward(self, x):
        return self.layers(x)


class TaskHead(nn.Module):
    def __init__(self, out_channels):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2048, 256, 3, padding=d, dilation=d, bias=False),
                nn.BatchNorm2d(256),
                nn.ReLU(),
            )
            for d in (6, 12, 18)
        )
        self.project = nn.Sequential(
            nn.Conv2d(768, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU()
        )
        self.low = nn.Sequential(nn.Conv2d(256, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.last = nn.Sequential(
            nn.Conv2d(304, 256, 3, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(),
            nn.Conv2d(256, out_channels, 1),
        )

    def forward(self, features, size):
        x = self.project(torch.cat([b(features["high"]) for b in self.branches], dim=1))
        low = self.low(features["low"])
        x = F.interpolate(x, size=low.shape[-2:], mode="bilinear", align_corners=False)
        x = self.last(torch.cat([x, low], dim=1))
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def depth_loss(pred, depth):
    valid = (depth > 0).float()
    return ((pred - depth).abs() * valid).sum() / valid.sum().clamp(min=1)


class PCGrad:
    """Yu et al. 2020: a task's gradient loses its part against the other's."""

    def __init__(self, optimizer, shared):
        self.optimizer, self.shared = optimizer, list(shared)

    def flat(self, loss, retain):
        grads = torch.autograd.grad(loss, self.shared, retain_graph=retain)
        return torch.cat([g.reshape(-1) for g in grads])

    def step(self, losses, private):
        flats = []
        for i, (loss, params) in enumerate(zip(losses, private)):
            own = torch.autograd.grad(loss, params, retain_graph=True)
            for p, g in zip(params, own):
                p.grad = g
            flats.append(self.flat(loss, retain=i < len(losses) - 1))
        merged = torch.zeros_like(flats[0])
        for i, g in enumerate(flats):
            g = g.clone()
            others = [o for j, o in enumerate(flats) if j != i]
            random.shuffle(others)
            for o in others:
                dot = torch.dot(g, o)
                g -= dot.clamp(max=0) / (o.norm() ** 2 + 1e-12) * o
            merged += g
        offset = 0
        for p in self.shared:
            p.grad = merged[offset : offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        self.optimizer.step()
        self.optimizer.zero_grad()


trunk = SharedTrunk().cuda()
heads = nn.ModuleDict({"semantic": TaskHead(CLASSES), "depth": TaskHead(1)}).cuda()
sgd = torch.optim.SGD(
    [{"params": trunk.parameters(), "lr": 1e-3}, {"params": heads.parameters(), "lr": 1e-2}],
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
)
pcgrad = PCGrad(sgd, trunk.parameters())
poly = torch.optim.lr_scheduler.PolynomialLR(sgd, total_iters=100, power=0.9)

for iteration in range(4):
    image = torch.rand(BATCH, 3, HEIGHT, WIDTH).cuda()
    semantic = torch.randint(-1, CLASSES, (BATCH, HEIGHT, WIDTH)).cuda()
    depth = (torch.rand(BATCH, 1, HEIGHT, WIDTH) * 10 - 0.5).clamp(min=0).cuda()
    features = trunk(image)
    logits = heads["semantic"](features, (HEIGHT, WIDTH))
    metres = heads["depth"](features, (HEIGHT, WIDTH))
    losses = [F.cross_entropy(logits, semantic, ignore_index=-1), depth_loss(metres, depth)]
    pcgrad.step(losses, [list(heads["semantic"].parameters()), list(heads["depth"].parameters())])
    poly.step()
    print(iteration, [round(loss.item(), 4) for loss in losses])
