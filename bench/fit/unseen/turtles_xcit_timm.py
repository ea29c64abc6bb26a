"""Turtles recognised by their shells with timm's XCiT: pictures grow from step to step, sub-centres with an angular margin as head, fp16 with a scaler, gradients centralized."""

import timm
import torch
from torch import nn
from torch.nn import functional as F


class CFG:
    backbone = "xcit_small_12_p16_224"
    turtles = 2265
    centres = 3
    margin = 0.35
    scale = 30.0
    batch = 36
    sides = (160, 192, 224, 256, 288)
    lr = 2e-4


class SubCentreHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(CFG.turtles * CFG.centres, dim))
        nn.init.xavier_normal_(self.weight)

    def forward(self, z, y):
        cos = F.linear(F.normalize(z.float()), F.normalize(self.weight))
        cos = cos.view(-1, CFG.turtles, CFG.centres).amax(-1)
        angle = torch.acos(cos.clamp(-1 + 1e-6, 1 - 1e-6))
        moved = torch.cos(angle + CFG.margin * F.one_hot(y, CFG.turtles))
        return F.cross_entropy(CFG.scale * moved, y)


class Turtles(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = timm.create_model(
            CFG.backbone, pretrained=False, num_classes=0, drop_path_rate=0.1
        )
        self.neck = nn.Sequential(nn.Linear(self.trunk.num_features, 512), nn.BatchNorm1d(512))
        self.head = SubCentreHead(512)

    def forward(self, x, y):
        z = self.neck(self.trunk(x))
        with torch.autocast("cuda", enabled=False):
            return self.head(z, y)


def centralize(parameters):
    for p in parameters:
        if p.grad is not None and p.ndim > 1:
            p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True))


if __name__ == "__main__":
    torch.manual_seed(42)
    model = Turtles().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.lr, weight_decay=0.05)
    scaler = torch.amp.GradScaler()
    for epoch, side in enumerate(CFG.sides):
        images = torch.randn(CFG.batch, 3, side, side).cuda()
        if torch.rand(1) < 0.5:
            images = images.flip(-1)
        identity = torch.randint(CFG.turtles, (CFG.batch,)).cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = model(images, identity)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        centralize(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        print(f"{side} px: {loss.item():.4f}")
