"""Pedestrians as points: a CenterNet on a ResNet-34 trunk with deconvolutions, heat maps with Gaussians, sizes and offsets, peaks by max pooling, MultiStepLR."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class CenterNet(nn.Module):
    def __init__(self, classes=3, channels=(256, 128, 64)):
        super().__init__()
        trunk = torchvision.models.resnet34(weights=None)
        self.trunk = nn.Sequential(*list(trunk.children())[:-2])
        ups, c = [], 512
        for o in channels:
            ups += [
                nn.Conv2d(c, o, 3, padding=1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
                nn.ConvTranspose2d(o, o, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
            ]
            c = o
        self.neck = nn.Sequential(*ups)
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Conv2d(c, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, o, 1)
                )
                for name, o in {"hm": classes, "wh": 2, "off": 2}.items()
            }
        )
        self.heads["hm"][-1].bias.data.fill_(-2.19)

    def forward(self, images):
        f = self.neck(self.trunk(images))
        return {name: head(f) for name, head in self.heads.items()}


def targets(batch, side, people, classes, g):
    """Heat maps, indices of the centres, and sizes, built on the host as a loader would."""
    yy, xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    centre = torch.rand(batch, people, 2, generator=g) * (side - 1)
    wh = 2 + torch.rand(batch, people, 2, generator=g) * side / 6
    kind = torch.randint(0, classes, (batch, people), generator=g)
    cell = centre.floor()
    sigma = wh.min(-1).values / 6 + 0.5
    d2 = (xx - cell[..., 0, None, None]) ** 2 + (yy - cell[..., 1, None, None]) ** 2
    bumps = torch.exp(-d2 / (2 * sigma[..., None, None] ** 2))
    hm = torch.zeros(batch, classes, side, side)
    for b in range(batch):
        for k in range(people):
            hm[b, kind[b, k]] = torch.maximum(hm[b, kind[b, k]], bumps[b, k])
    index = (cell[..., 1] * side + cell[..., 0]).long()
    present = (torch.rand(batch, people, generator=g) < 0.7).float()
    return {"hm": hm, "index": index, "wh": wh, "off": centre - cell, "present": present}


def gather(feature, index):
    feature = feature.flatten(2).transpose(1, 2)
    return feature.gather(1, index[..., None].expand(-1, -1, feature.shape[2]))


def penalty_reduced_focal(logits, gt):
    p = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    pos = gt.eq(1).float()
    loss = pos * (1 - p) ** 2 * p.log() + (1 - pos) * (1 - gt) ** 4 * p**2 * (1 - p).log()
    return -loss.sum() / pos.sum().clamp(min=1)


def criterion(out, t):
    n = t["present"].sum().clamp(min=1)
    weight = t["present"][..., None]
    hm = penalty_reduced_focal(out["hm"], t["hm"])
    wh = ((gather(out["wh"], t["index"]) - t["wh"]).abs() * weight).sum() / n
    off = ((gather(out["off"], t["index"]) - t["off"]).abs() * weight).sum() / n
    return hm + 0.1 * wh + off, (hm, wh, off)


@torch.no_grad()
def decode(out, k=40):
    hm = out["hm"].sigmoid()
    hm = hm * (F.max_pool2d(hm, 3, 1, 1) == hm)
    score, where = hm.flatten(1).topk(k)
    where = where % (hm.shape[2] * hm.shape[3])
    return score, gather(out["wh"], where), gather(out["off"], where)


class Trainer:
    def __init__(self):
        self.net = CenterNet().cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1.25e-4)
        self.decay = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 5], gamma=0.1)
        self.g = torch.Generator().manual_seed(140)

    def run(self, iterations, batch=18, size=512):
        for i in range(iterations):
            images = torch.randn(batch, 3, size, size, generator=self.g).cuda()
            t = {k: v.cuda() for k, v in targets(batch, size // 4, 16, 3, self.g).items()}
            loss, parts = criterion(self.net(images), t)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.decay.step()
            print(i, loss.item(), *(round(p.item(), 3) for p in parts))
        self.net.eval()
        with torch.no_grad():
            score, *_ = decode(self.net(images[:2]))
        print("best", score[:, 0].tolist())


if __name__ == "__main__":
    torch.manual_seed(140)
    Trainer().run(5)
