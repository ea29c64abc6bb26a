"""Grocery shelf parsing (segmentation + counting) with a small Engine and its callbacks."""

import argparse
import dataclasses
import pathlib
import tempfile
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet34


@dataclasses.dataclass
class ShelfOutput:
    masks: Tensor
    counts: Tensor
    loss: Optional[Tensor] = None
    parts: Dict[str, Tensor] = dataclasses.field(default_factory=dict)


class ShelfNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        net = resnet34(weights=None)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu)
        self.pool = net.maxpool
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])
        dims = [64, 64, 128, 256, 512]
        self.lateral = nn.ModuleList(nn.Conv2d(d, 128, 1) for d in dims)
        self.smooth = nn.ModuleList(
            nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.GroupNorm(16, 128), nn.SiLU())
            for _ in dims
        )
        self.mask = nn.Conv2d(128, classes, 1)
        self.count = nn.Linear(512, classes)

    def forward(self, images, targets=None, counts=None):
        feats = [self.stem(images)]
        x = self.pool(feats[0])
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        y = self.smooth[-1](self.lateral[-1](feats[-1]))
        for i in range(len(feats) - 2, -1, -1):
            y = F.interpolate(y, size=feats[i].shape[-2:], mode="bilinear", align_corners=False)
            y = self.smooth[i](y + self.lateral[i](feats[i]))
        masks = F.interpolate(
            self.mask(y), size=images.shape[-2:], mode="bilinear", align_corners=False
        )
        out = ShelfOutput(masks, F.softplus(self.count(feats[-1].mean((2, 3)))))
        if targets is not None:
            out.parts = {
                "mask": F.cross_entropy(out.masks, targets),
                "count": F.smooth_l1_loss(out.counts, counts),
            }
            out.loss = sum(out.parts.values())
        return out


class Callback:
    def on_step(self, engine): ...
    def on_epoch(self, engine): ...


class Ema(Callback):
    def __init__(self, decay):
        self.decay, self.shadow = decay, None

    @torch.no_grad()
    def on_step(self, engine):
        state = engine.model.state_dict()
        if self.shadow is None:
            self.shadow = {k: v.detach().clone() for k, v in state.items()}
        for k, v in state.items():
            if v.is_floating_point():
                self.shadow[k].lerp_(v, 1 - self.decay)


class Checkpoint(Callback):
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch(self, engine):
        torch.save(
            {
                "model": engine.model.state_dict(),
                "optim": engine.optimizer.state_dict(),
                "scaler": engine.scaler.state_dict(),
            },
            self.folder / f"epoch{engine.epoch}.pt",
        )


class Validate(Callback):
    def __init__(self, batches):
        self.batches = batches

    @torch.no_grad()
    def on_epoch(self, engine):
        engine.model.eval()
        hits = total = 0
        for batch in self.batches:
            images, targets, _ = engine.move(batch)
            pred = engine.model(images).masks.argmax(1)
            hits += (pred == targets).sum().item()
            total += targets.numel()
        engine.model.train()
        print(f"epoch {engine.epoch} pixel accuracy {hits / total:.3f}", flush=True)


class Engine:
    def __init__(self, model, optimizer, args, callbacks: List[Callback]):
        self.model, self.optimizer, self.args, self.callbacks = model, optimizer, args, callbacks
        self.scaler = torch.amp.GradScaler("cuda")
        self.epoch = self.step = 0

    def move(self, batch):
        return [t.to("cuda", non_blocking=True) for t in batch]

    def fire(self, name):
        for c in self.callbacks:
            getattr(c, name)(self)

    def fit(self, data):
        for self.epoch in range(self.args.epochs):
            self.optimizer.zero_grad()
            for i, batch in enumerate(data):
                with torch.autocast("cuda", dtype=torch.float16):
                    out = self.model(*self.move(batch))
                self.scaler.scale(out.loss / self.args.accumulate).backward()
                if (i + 1) % self.args.accumulate == 0:
                    self.scaler.unscale_(self.optimizer)
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad()
                    self.step += 1
                    self.fire("on_step")
                    print(
                        self.step, {k: round(v.item(), 3) for k, v in out.parts.items()}, flush=True
                    )
            self.fire("on_epoch")


def synthetic(n, args, seed):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.rand(args.batch, 3, args.size, args.size, generator=g),
            torch.randint(args.classes, (args.batch, args.size // 32, args.size // 32), generator=g)
            .repeat_interleave(32, 1)
            .repeat_interleave(32, 2),
            torch.rand(args.batch, args.classes, generator=g) * 10,
        )
        for _ in range(n)
    ]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--accumulate", type=int, default=3)
    p.add_argument("--size", type=int, default=384)
    p.add_argument("--classes", type=int, default=40)
    args = p.parse_args()
    torch.manual_seed(7)
    model = ShelfNet(args.classes).cuda()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    engine = Engine(
        model,
        optimizer,
        args,
        [Ema(0.999), Validate(synthetic(2, args, 5)), Checkpoint(tempfile.mkdtemp())],
    )
    engine.fit(synthetic(9, args, 0))
