"""Shoes by kind at 128 px: a BigGAN with conditional batch norm, self-attention and a projection discriminator, two critic steps for one of the generator."""

import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm

N_CLASSES, Z, CH = 12, 120, 48
SNConv = lambda *a, **k: spectral_norm(nn.Conv2d(*a, **k))
SNLinear = lambda *a, **k: spectral_norm(nn.Linear(*a, **k))


class CondBN(nn.Module):
    def __init__(self, features, cond):
        super().__init__()
        self.bn = nn.BatchNorm2d(features, affine=False)
        self.gain, self.bias = (
            SNLinear(cond, features, bias=False),
            SNLinear(cond, features, bias=False),
        )

    def forward(self, x, y):
        return self.bn(x) * (1 + self.gain(y))[..., None, None] + self.bias(y)[..., None, None]


class GBlock(nn.Module):
    def __init__(self, i, o, cond):
        super().__init__()
        self.bn1, self.bn2 = CondBN(i, cond), CondBN(o, cond)
        self.c1, self.c2, self.sc = (
            SNConv(i, o, 3, padding=1),
            SNConv(o, o, 3, padding=1),
            SNConv(i, o, 1),
        )

    def forward(self, x, y):
        up = functools.partial(F.interpolate, scale_factor=2)
        h = self.c1(up(F.relu(self.bn1(x, y))))
        h = self.c2(F.relu(self.bn2(h, y)))
        return h + self.sc(up(x))


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.theta, self.phi = SNConv(c, c // 8, 1, bias=False), SNConv(c, c // 8, 1, bias=False)
        self.g, self.o = SNConv(c, c // 2, 1, bias=False), SNConv(c // 2, c, 1, bias=False)
        self.gamma = nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        b, c, h, w = x.shape
        theta = self.theta(x).flatten(2)
        phi = F.max_pool2d(self.phi(x), 2).flatten(2)
        g = F.max_pool2d(self.g(x), 2).flatten(2)
        beta = F.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
        return self.gamma * self.o(torch.bmm(g, beta.transpose(1, 2)).view(b, c // 2, h, w)) + x


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16 * CH, 16 * CH, 8 * CH, 4 * CH, 2 * CH, CH]
        self.chunk = Z // 6
        self.shared = nn.Embedding(N_CLASSES, 128)
        self.linear = SNLinear(self.chunk, 16 * widths[0])
        self.blocks = nn.ModuleList(
            [GBlock(a, b, 128 + self.chunk) for a, b in zip(widths, widths[1:])]
        )
        self.attention = SelfAttention(widths[4])
        self.out = nn.Sequential(
            nn.BatchNorm2d(CH), nn.ReLU(), SNConv(CH, 3, 3, padding=1), nn.Tanh()
        )

    def forward(self, z, label):
        first, *rest = z.split(self.chunk, 1)
        y = self.shared(label)
        h = self.linear(first).view(len(z), -1, 4, 4)
        for i, (block, part) in enumerate(zip(self.blocks, rest)):
            h = block(h, torch.cat([y, part], 1))
            if i == 3:
                h = self.attention(h)
        return self.out(h)


class DBlock(nn.Module):
    def __init__(self, i, o, down=True, first=False):
        super().__init__()
        self.c1, self.c2, self.sc = (
            SNConv(i, o, 3, padding=1),
            SNConv(o, o, 3, padding=1),
            SNConv(i, o, 1),
        )
        self.down, self.first = down, first

    def forward(self, x):
        h = self.c2(F.relu(self.c1(x if self.first else F.relu(x))))
        s = self.sc(x)
        return F.avg_pool2d(h, 2) + F.avg_pool2d(s, 2) if self.down else h + s


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            DBlock(3, CH, first=True),
            DBlock(CH, 2 * CH),
            SelfAttention(2 * CH),
            DBlock(2 * CH, 4 * CH),
            DBlock(4 * CH, 8 * CH),
            DBlock(8 * CH, 16 * CH),
            DBlock(16 * CH, 16 * CH, down=False),
        )
        self.linear = SNLinear(16 * CH, 1)
        self.embed = spectral_norm(nn.Embedding(N_CLASSES, 16 * CH))

    def forward(self, x, y):
        h = F.relu(self.body(x)).sum((2, 3))
        return self.linear(h) + (self.embed(y) * h).sum(1, keepdim=True)


def toggle(net, on):
    for p in net.parameters():
        p.requires_grad_(on)


if __name__ == "__main__":
    torch.manual_seed(101)
    G, D = Generator().cuda(), Discriminator().cuda()
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.999), eps=1e-6)
    opt_d = torch.optim.Adam(D.parameters(), lr=4e-4, betas=(0.0, 0.999), eps=1e-6)
    bs = 20
    for it in range(2):
        toggle(D, True), toggle(G, False)
        for _ in range(2):
            real = (torch.rand(bs, 3, 128, 128) * 2 - 1).cuda()
            labels = torch.randint(N_CLASSES, (bs,)).cuda()
            with torch.no_grad():
                fake = G(torch.randn(bs, Z).cuda(), labels)
            scores = D(torch.cat([real, fake]), torch.cat([labels, labels]))
            s_real, s_fake = scores.split(bs)
            d_loss = F.relu(1 - s_real).mean() + F.relu(1 + s_fake).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()
        toggle(D, False), toggle(G, True)
        labels = torch.randint(N_CLASSES, (bs,)).cuda()
        g_loss = -D(G(torch.randn(bs, Z).cuda(), labels), labels).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        print(f"it {it}  D {d_loss.item():.3f}  G {g_loss.item():.3f}")
