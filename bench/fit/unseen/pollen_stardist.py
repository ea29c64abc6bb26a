"""
Counting pollen under the microscope. StarDist: a U-Net says for each pixel how likely it is the middle of a
grain, and how far the rim is along 32 rays. Synthetic slides. bf16, channels_last, two crops per step.
"""

from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

RAYS = 32


@dataclass
class Slides:
    image: torch.Tensor
    prob: torch.Tensor
    dist: torch.Tensor

    def to(self, device):
        return Slides(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))

    @staticmethod
    def collate(items):
        return Slides(*(torch.stack(x) for x in zip(*items)))


class SlideDataset(Dataset):
    def __init__(self, slides=8, size=384, grains=35, length=192):
        self.size, self.length = size, length
        self.cache = [self.draw(grains) for _ in range(slides)]

    def draw(self, grains):
        s = self.size
        yy, xx = torch.meshgrid(torch.arange(s), torch.arange(s), indexing="ij")
        image, depth = torch.randn(s, s) * 0.1, torch.zeros(s, s)
        centre, radius = torch.zeros(2, s, s), torch.zeros(s, s)
        for _ in range(grains):
            cy, cx, r = torch.rand(()) * s, torch.rand(()) * s, 10 + 22 * torch.rand(())
            d2 = (yy - cy) ** 2 + (xx - cx) ** 2
            inside = d2 < r * r
            image[inside] += 0.5 + 0.3 * torch.rand(())
            depth[inside] = 1 - d2[inside].sqrt() / r
            centre[0][inside], centre[1][inside], radius[inside] = cy, cx, r
        angle = torch.arange(RAYS) * (2 * torch.pi / RAYS)
        py, px = yy - centre[0], xx - centre[1]
        along = angle.sin()[:, None, None] * py + angle.cos()[:, None, None] * px
        dist = -along + (radius**2 - py**2 - px**2 + along**2).clamp(min=0).sqrt()
        return image[None], depth[None], dist * (depth > 0)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        image, prob, dist = self.cache[i % len(self.cache)]
        k = int(torch.randint(0, 4, ()))
        image, prob, dist = (torch.rot90(t, k, (1, 2)) for t in (image, prob, dist))
        # rays turn with the image
        return image * (0.8 + 0.4 * torch.rand(())), prob, dist.roll(-k * RAYS // 4, 0)


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class StarDist(nn.Module):
    def __init__(self, width=48, depth=4):
        super().__init__()
        w = [width * 2**i for i in range(depth)]
        self.enc = nn.ModuleList(double(a, b) for a, b in zip([1] + w[:-1], w))
        self.bottom = double(w[-1], 2 * w[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, stride=2) for c in reversed(w))
        self.dec = nn.ModuleList(double(2 * c, c) for c in reversed(w))
        self.features = nn.Conv2d(width, 128, 3, padding=1)
        self.prob = nn.Conv2d(128, 1, 1)
        self.dist = nn.Conv2d(128, RAYS, 1)

    def forward(self, x):
        skips = []
        for block in self.enc:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, block in zip(self.up, self.dec):
            x = block(torch.cat([up(x), skips.pop()], 1))
        x = F.relu(self.features(x))
        return self.prob(x), F.softplus(self.dist(x))


def criterion(out, s, reg=1e-4):
    prob, dist = (o.float() for o in out)
    bce = F.binary_cross_entropy_with_logits(prob, s.prob)
    mask = s.prob  # the middle of a grain counts most
    mae = (mask * (dist - s.dist).abs()).sum() / (RAYS * mask.sum().clamp(min=1))
    outside = ((mask == 0) * dist).mean()
    return bce + 0.2 * mae + reg * outside, bce, mae


def main(batch=6, accumulate=2, epochs=2):
    torch.manual_seed(5)
    device = torch.device("cuda")
    loader = DataLoader(
        SlideDataset(length=batch * accumulate * 7), batch, shuffle=True, collate_fn=Slides.collate
    )
    net = StarDist().to(device, memory_format=torch.channels_last)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    for epoch in range(epochs):
        net.train()
        running = torch.zeros((), device=device)
        for i, slides in enumerate(loader):
            slides = slides.to(device)
            x = slides.image.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.bfloat16):
                out = net(x)
            loss, bce, mae = criterion(out, slides)
            (loss / accumulate).backward()
            running += loss.detach()
            if (i + 1) % accumulate == 0:
                opt.step()
                opt.zero_grad()
        mean = running.item() / len(loader)
        plateau.step(mean)
        print(
            f"epoch {epoch} loss {mean:.4f} (last bce {bce.item():.3f}, mae {mae.item():.2f} px) lr {opt.param_groups[0]['lr']:.1e}"
        )


if __name__ == "__main__":
    main()
