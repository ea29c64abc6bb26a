"""InfoGAN for invented glyphs, 128x128: generator, critic with an R1 penalty, and a separate code reader; three Adams, generator EMA, fp32."""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))
NOISE, KINDS, STYLES = 96, 20, 4
dev = "cuda"


class Up(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.n1, self.n2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = F.interpolate(F.relu(self.n1(x)), scale_factor=2)
        h = self.c2(F.relu(self.n2(self.c1(h))))
        return h + F.interpolate(self.skip(x), scale_factor=2)


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = self.c2(F.leaky_relu(self.c1(F.leaky_relu(x, 0.2)), 0.2))
        return F.avg_pool2d(h, 2) + self.skip(F.avg_pool2d(x, 2))


class Generator(nn.Module):
    def __init__(self, widths=(512, 512, 256, 128, 96, 64)):
        super().__init__()
        self.first = nn.Linear(NOISE + KINDS + STYLES, widths[0] * 16)
        self.ups = nn.Sequential(*[Up(a, b) for a, b in zip(widths, widths[1:])])
        self.last = nn.Sequential(
            nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.Conv2d(widths[-1], 1, 3, padding=1)
        )

    def forward(self, noise, kind, style):
        h = self.first(torch.cat([noise, F.one_hot(kind, KINDS).float(), style], 1))
        return torch.tanh(self.last(self.ups(h.view(len(h), -1, 4, 4))))


def reader(out, widths):
    layers = [nn.Conv2d(1, widths[0], 3, padding=1)]
    layers += [Down(a, b) for a, b in zip(widths, widths[1:])]
    layers += [nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], out))


def codes(n):
    return (
        torch.randn(n, NOISE, device=dev),
        torch.randint(0, KINDS, (n,), device=dev),
        torch.rand(n, STYLES, device=dev) * 2 - 1,
    )


torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
G = Generator().to(dev)
D = reader(1, (64, 96, 128, 256, 512, 512)).to(dev)
Q = reader(KINDS + 2 * STYLES, (32, 64, 96, 128, 256)).to(dev)
G_ema = copy.deepcopy(G).requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.99))
opt_q = torch.optim.Adam(Q.parameters(), lr=3e-4, betas=(0.5, 0.99))
sched = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9999) for o in (opt_g, opt_d, opt_q)]
batch = 96
strokes = (torch.rand(1024, 1, 128, 128) > 0.8).float() * 2 - 1

for step in range(STEPS):
    real = strokes[torch.randint(0, len(strokes), (batch,))].to(dev)

    # critic: hinge-free logistic loss, R1 on the real ones every fourth step
    with torch.no_grad():
        fake = G(*codes(batch))
    penalise = step % 4 == 0
    real.requires_grad_(penalise)
    on_real, on_fake = D(real), D(fake)
    loss_d = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
    if penalise:
        (grad,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
        loss_d = loss_d + 4 * 0.5 * grad.square().sum((1, 2, 3)).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    # generator and code reader together
    noise, kind, style = codes(batch)
    D.requires_grad_(False)
    fake = G(noise, kind, style)
    logits, mean, logvar = Q(fake).split([KINDS, STYLES, STYLES], dim=1)
    logvar = logvar.clamp(-6, 4)
    info = F.cross_entropy(logits, kind)
    info = info + 0.1 * (0.5 * (logvar + (style - mean) ** 2 / logvar.exp())).mean()
    loss_g = F.softplus(-D(fake)).mean() + info
    opt_g.zero_grad()
    opt_q.zero_grad()
    loss_g.backward()
    nn.utils.clip_grad_norm_(Q.parameters(), 5.0)
    opt_g.step()
    opt_q.step()
    D.requires_grad_(True)
    with torch.no_grad():
        for slow, fast in zip(G_ema.parameters(), G.parameters()):
            slow.lerp_(fast, 0.002)
    for s in sched:
        s.step()
    print(f"{step}: D {loss_d.item():.3f} G {loss_g.item():.3f} info {info.item():.3f}")
