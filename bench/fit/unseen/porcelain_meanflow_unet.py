"""Pictures of porcelain in one step by MeanFlow: a U-Net of average velocities, its derivative along the path by jvp."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jvp


def fourier(t, width):
    freq = torch.exp(torch.linspace(0, 6, width // 2, device=t.device))
    angle = t[:, None] * freq
    return torch.cat([angle.sin(), angle.cos()], 1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(16, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(16, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(emb)[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class UNet(nn.Module):
    """Velocity of a picture, averaged from time r to time t."""

    def __init__(self, base=64, mults=(1, 2, 3, 4), classes=20, emb=256):
        super().__init__()
        widths = [base * m for m in mults]
        self.label = nn.Embedding(classes + 1, emb)
        self.time = nn.Sequential(nn.Linear(256, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.enter = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, width = [base], base
        for w in widths:
            self.down.append(nn.ModuleList([ResBlock(width, w, emb), ResBlock(w, w, emb)]))
            skips += [w, w]
            width = w
        self.middle = ResBlock(width, width, emb)
        for w in reversed(widths):
            self.up.append(
                nn.ModuleList(
                    [ResBlock(width + skips.pop(), w, emb), ResBlock(w + skips.pop(), w, emb)]
                )
            )
            width = w
        self.norm, self.leave = nn.GroupNorm(16, width), nn.Conv2d(width, 3, 3, padding=1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x, r, t, y):
        emb = self.time(torch.cat([fourier(t, 128), fourier(t - r, 128)], 1)) + self.label(y)
        emb = F.silu(emb)
        h, kept = self.enter(x), []
        for i, (a, b) in enumerate(self.down):
            if i:
                h = F.avg_pool2d(h, 2)
            h = a(h, emb)
            kept.append(h)
            h = b(h, emb)
            kept.append(h)
        h = self.middle(h, emb)
        for i, (a, b) in enumerate(self.up):
            if i:
                h = F.interpolate(h, scale_factor=2.0, mode="nearest")
            h = a(torch.cat([h, kept.pop()], 1), emb)
            h = b(torch.cat([h, kept.pop()], 1), emb)
        return self.leave(F.silu(self.norm(h)))


def two_times(n, device, different=0.25):
    a, b = (torch.randn(2, n, device=device) - 0.4).sigmoid()
    t, r = torch.maximum(a, b), torch.minimum(a, b)
    same = torch.rand(n, device=device) > different
    return torch.where(same, t, r), t


def meanflow_loss(net, x, y):
    r, t = two_times(len(x), x.device)
    noise = torch.randn_like(x)
    at = t.view(-1, 1, 1, 1)
    z, v = (1 - at) * x + at * noise, noise - x
    tangents = (v, torch.zeros_like(r), torch.ones_like(t))
    u, slope = jvp(lambda z, r, t: net(z, r, t, y), (z, r, t), tangents)
    target = (v - (t - r).view(-1, 1, 1, 1) * slope).detach()
    error = (u - target).square().mean((1, 2, 3))
    return (error / (error.detach() + 1e-3)).mean(), error.mean()


@torch.no_grad()
def sample(net, n, y):
    z = torch.randn(n, 3, 64, 64, device=y.device)
    ones = torch.ones(n, device=y.device)
    return (z - net(z, 0 * ones, ones, y)).clamp(-1, 1)


def main(batch=24, steps=5):
    torch.manual_seed(4)
    net = UNet().cuda()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.9, 0.95))
    for step in range(steps):
        x = torch.rand(batch, 3, 64, 64, device="cuda") * 2 - 1
        y = torch.randint(20, (batch,), device="cuda")
        y = torch.where(torch.rand(batch, device="cuda") < 0.1, 20, y)
        loss, error = meanflow_loss(net, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters()):
                a.lerp_(p, 0.001)
        print(f"step {step} loss {loss.item():.4f} error {error.item():.4f}")
    print(sample(average, 8, torch.arange(8, device="cuda")).std().item())


if __name__ == "__main__":
    main()
