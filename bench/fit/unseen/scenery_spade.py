"""Scenery from label maps: a SPADE generator with an encoder of style, patch critics at two scales, hinge and feature matching, fp16 with a scaler for each side."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import spectral_norm as sn

CLASSES, SIZE, BATCH = 32, 256, 9


class SPADE(nn.Module):
    def __init__(self, channels, hidden=64):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.shared = nn.Sequential(nn.Conv2d(CLASSES, hidden, 3, padding=1), nn.ReLU())
        self.gamma = nn.Conv2d(hidden, channels, 3, padding=1)
        self.beta = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, x, seg):
        s = self.shared(F.interpolate(seg, size=x.shape[2:], mode="nearest"))
        return self.norm(x) * (1 + self.gamma(s)) + self.beta(s)


class SpadeBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        m = min(i, o)
        self.n1, self.c1 = SPADE(i), sn(nn.Conv2d(i, m, 3, padding=1))
        self.n2, self.c2 = SPADE(m), sn(nn.Conv2d(m, o, 3, padding=1))
        self.ns, self.cs = (
            (SPADE(i), sn(nn.Conv2d(i, o, 1, bias=False))) if i != o else (None, None)
        )

    def forward(self, x, seg):
        short = x if self.cs is None else self.cs(self.ns(x, seg))
        x = self.c1(F.leaky_relu(self.n1(x, seg), 0.2))
        return short + self.c2(F.leaky_relu(self.n2(x, seg), 0.2))


class Generator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        w = width
        self.enc = nn.Sequential()
        for i, o in [(3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 4 * w)]:
            self.enc.extend([nn.Conv2d(i, o, 3, 2, 1), nn.InstanceNorm2d(o), nn.LeakyReLU(0.2)])
        self.stats = nn.Linear(4 * w, 2 * 128)
        self.fc = nn.Linear(128, 8 * w * 8 * 8)
        plan = [(8, 8), (8, 8), (8, 4), (4, 2), (2, 1)]
        self.blocks = nn.ModuleList(SpadeBlock(a * w, b * w) for a, b in plan)
        self.rgb = nn.Conv2d(w, 3, 3, padding=1)
        self.width = w

    def forward(self, seg, photo):
        mu, logvar = self.stats(self.enc(photo).mean((2, 3))).chunk(2, 1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        x = self.fc(z).view(-1, 8 * self.width, 8, 8)
        for block in self.blocks:
            x = F.interpolate(block(x, seg), scale_factor=2)
        kld = -0.5 * (1 + logvar - mu**2 - logvar.exp()).mean()
        return torch.tanh(self.rgb(F.leaky_relu(x, 0.2))), kld


def patch_critic():
    layers, i = [], CLASSES + 3
    for o in (64, 128, 256, 384):
        stride = 2 if o < 384 else 1
        layers.append(nn.Sequential(sn(nn.Conv2d(i, o, 4, stride, 2)), nn.LeakyReLU(0.2)))
        i = o
    layers.append(nn.Conv2d(i, 1, 4, 1, 2))
    return nn.ModuleList(layers)


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ModuleList([patch_critic(), patch_critic()])

    def forward(self, seg, image):
        x, results = torch.cat([seg, image], 1), []
        for critic in self.scales:
            h, feats = x, []
            for layer in critic:
                h = layer(h)
                feats.append(h)
            results.append(feats)
            x = F.avg_pool2d(x, 3, 2, 1)
        return results


def scenery():
    coarse = torch.randint(0, CLASSES, (BATCH, 1, 16, 16)).float()
    labels = F.interpolate(coarse, size=SIZE).long()[:, 0].cuda()
    return F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).float(), torch.rand(
        BATCH, 3, SIZE, SIZE
    ).cuda() * 2 - 1


def main(amp=True):
    g, d = Generator().cuda(), Critics().cuda()
    opt_g = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(d.parameters(), lr=4e-4, betas=(0.0, 0.9))
    scale_g, scale_d = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")

    def cast():
        return torch.autocast("cuda", torch.float16) if amp else nullcontext()

    for it in range(4):
        seg, photo = scenery()

        opt_g.zero_grad(set_to_none=True)
        with cast():
            fake, kld = g(seg, photo)
            real_f, fake_f = d(seg, photo), d(seg, fake)
            adv = sum(-f[-1].float().mean() for f in fake_f)
            match = sum(
                F.l1_loss(a, b.detach())
                for fs, rs in zip(fake_f, real_f)
                for a, b in zip(fs[:-1], rs)
            )
            loss_g = adv + 10 * match + 0.05 * kld
        scale_g.scale(loss_g).backward()
        scale_g.step(opt_g)
        scale_g.update()

        opt_d.zero_grad(set_to_none=True)
        with cast():
            loss_d = 0
            for real, made in zip(d(seg, photo), d(seg, fake.detach())):
                loss_d = loss_d + F.relu(1 - real[-1]).mean() + F.relu(1 + made[-1]).mean()
        scale_d.scale(loss_d).backward()
        scale_d.step(opt_d)
        scale_d.update()
        print(f"{it}: G {loss_g.item():.3f} D {loss_d.item():.3f}")


if __name__ == "__main__":
    main()
