"""Cars in lidar sweeps by pillars: points scattered to a bird's eye map, a small CNN, focal loss and smooth L1 for boxes, OneCycle, bf16 for the CNN."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class PillarEncoder(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.linear = nn.Linear(9, channels, bias=False)
        self.norm = nn.BatchNorm1d(channels, eps=1e-3)

    def forward(self, points, mask):
        """points: P x 32 x 9, mask: P x 32 -> P x channels"""
        x = self.linear(points)
        x = self.norm(x.flatten(0, 1)).view_as(x)
        x = F.relu(x).masked_fill(~mask[..., None], 0)
        return x.amax(1)


class Backbone(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.blocks, self.ups = nn.ModuleList(), nn.ModuleList()
        for i, (inp, out, depth) in enumerate([(64, 64, 3), (64, 128, 4), (128, 256, 4)]):
            layers = []
            for j in range(depth):
                layers += [
                    nn.Conv2d(inp if j == 0 else out, out, 3, 2 if j == 0 else 1, 1, bias=False),
                    nn.BatchNorm2d(out),
                    nn.ReLU(inplace=True),
                ]
            self.blocks.append(nn.Sequential(*layers))
            self.ups.append(
                nn.Sequential(
                    nn.ConvTranspose2d(out, 128, 2**i, 2**i, bias=False),
                    nn.BatchNorm2d(128),
                    nn.ReLU(inplace=True),
                )
            )

    def forward(self, x):
        outs = []
        for block, up in zip(self.blocks, self.ups):
            x = block(x)
            outs.append(up(x))
        return torch.cat(outs, 1)


class PointPillars(nn.Module):
    def __init__(self, grid=(432, 496), anchors=2):
        super().__init__()
        self.grid = grid
        self.encoder, self.backbone = PillarEncoder(), Backbone()
        self.cls = nn.Conv2d(384, anchors, 1)
        self.box = nn.Conv2d(384, anchors * 7, 1)

    def forward(self, points, mask, where, batch):
        h, w = self.grid
        features = self.encoder(points, mask)
        canvas = features.new_zeros(batch * h * w, features.shape[1])
        canvas = canvas.index_copy(0, where, features)
        canvas = canvas.view(batch, h, w, -1).permute(0, 3, 1, 2)
        with torch.autocast("cuda", torch.bfloat16):
            y = self.backbone(canvas)
            return self.cls(y).float(), self.box(y).float()


def sweep(batch, grid, pillars=12000):
    cells = grid[0] * grid[1]
    where = torch.cat([b * cells + torch.randperm(cells)[:pillars] for b in range(batch)])
    points = torch.randn(len(where), 32, 9)
    mask = torch.arange(32)[None] < torch.randint(1, 33, (len(where), 1))
    return points.cuda(), mask.cuda(), where.cuda()


def focal(logits, target):
    p = logits.sigmoid()
    pt = p * target + (1 - p) * (1 - target)
    alpha = 0.25 * target + 0.75 * (1 - target)
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (alpha * (1 - pt) ** 2 * bce).sum() / target.sum().clamp(min=1)


net = PointPillars().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.01)
cycle = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=100)
B = 4
for step in range(5):
    cls, box = net(*sweep(B, net.grid), B)
    target = torch.zeros_like(cls)
    target[:, :, 40:60:7, 30:90:11] = 1
    regression = F.smooth_l1_loss(box, torch.randn_like(box), beta=1 / 9, reduction="none")
    positive = target.repeat_interleave(7, 1)
    loss = focal(cls, target) + 2 * (regression * positive).sum() / positive.sum().clamp(min=1)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 35)
    opt.step()
    cycle.step()
    print(step, loss.item())
