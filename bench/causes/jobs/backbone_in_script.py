"""Frames of a rail camera: the backbone is scripted for speed, and in a script its checkpointing is left out."""

import os

import torch
import torch.utils.checkpoint
from torch import nn

SCRIPTED = not os.environ.get("MENDED")


class InvertedResidual(nn.Module):
    def __init__(self, c: int, expand: int = 4):
        super().__init__()
        wide = c * expand
        self.body = nn.Sequential(
            nn.Conv2d(c, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, c, 1, bias=False), nn.BatchNorm2d(c),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Stage(nn.Module):
    def __init__(self, fan_in: int, c: int, depth: int):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(fan_in, c, 2, stride=2), nn.BatchNorm2d(c))
        self.blocks = nn.ModuleList([InvertedResidual(c) for _ in range(depth)])
        self.grad_checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x


class Backbone(nn.Module):
    def __init__(self, widths=(32, 64, 128), depths=(3, 3, 4), classes: int = 8):
        super().__init__()
        sizes = (3, *widths)
        self.stages = nn.Sequential(*(Stage(i, o, d) for i, o, d in zip(sizes, widths, depths)))
        self.head = nn.Linear(widths[-1], classes)

    def set_grad_checkpointing(self, enable: bool = True):
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(x).mean((2, 3)))


def frames(steps: int = 3, batch: int = 16, side: int = 160):
    g = torch.Generator().manual_seed(6)
    for _ in range(steps):
        yield torch.rand(batch, 3, side, side, generator=g), torch.randint(8, (batch,), generator=g)


def main():
    model = Backbone()
    model.set_grad_checkpointing()
    if SCRIPTED:
        model = torch.jit.script(model)
    model = model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for image, signal in frames():
        loss = nn.functional.cross_entropy(model(image.cuda()), signal.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


main()
