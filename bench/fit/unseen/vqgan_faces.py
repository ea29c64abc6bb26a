"""VQ-GAN, first stage: L1 + perceptual + adversarial loss, with taming-transformers' adaptive weight."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import vgg16

cfg = SimpleNamespace(
    ch=64, ch_mult=[1, 1, 2, 2, 4], num_res_blocks=2, z=256, codes=1024, beta=0.25,
    resolution=256, batch=6, lr=4.5e-6 * 6, disc_start=0, disc_weight=0.8, iterations=3,
)  # fmt: skip


def norm(c):
    return nn.GroupNorm(32, c, eps=1e-6)


def swish(x):
    return x * torch.sigmoid(x)


class ResnetBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = norm(cin), nn.Conv2d(cin, cout, 3, 1, 1)
        self.norm2, self.conv2 = norm(cout), nn.Conv2d(cout, cout, 3, 1, 1)
        if cin != cout:
            self.nin_shortcut = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = self.conv1(swish(self.norm1(x)))
        h = self.conv2(swish(self.norm2(h)))
        if hasattr(self, "nin_shortcut"):
            x = self.nin_shortcut(x)
        return x + h


class AttnBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = norm(c)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        hidden = self.norm(x)
        q = self.q(hidden).reshape(b, c, h * w).permute(0, 2, 1)
        k = self.k(hidden).reshape(b, c, h * w)
        w_ = torch.softmax(torch.bmm(q, k) * c**-0.5, dim=2)
        v = self.v(hidden).reshape(b, c, h * w)
        out = torch.bmm(v, w_.permute(0, 2, 1)).reshape(b, c, h, w)
        return x + self.proj_out(out)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [nn.Conv2d(3, cfg.ch, 3, 1, 1)], cfg.ch
        for i, m in enumerate(cfg.ch_mult):
            for _ in range(cfg.num_res_blocks):
                layers.append(ResnetBlock(c, cfg.ch * m))
                c = cfg.ch * m
            if i == len(cfg.ch_mult) - 1:
                layers.append(AttnBlock(c))
            else:
                layers.append(nn.Conv2d(c, c, 3, 2, 1))
        layers += [ResnetBlock(c, c), AttnBlock(c), ResnetBlock(c, c), norm(c), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(c, cfg.z, 3, 1, 1))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        c = cfg.ch * cfg.ch_mult[-1]
        layers = [nn.Conv2d(cfg.z, c, 3, 1, 1), ResnetBlock(c, c), AttnBlock(c), ResnetBlock(c, c)]
        for i, m in reversed(list(enumerate(cfg.ch_mult))):
            for _ in range(cfg.num_res_blocks + 1):
                layers.append(ResnetBlock(c, cfg.ch * m))
                c = cfg.ch * m
            if i:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(c, c, 3, 1, 1)]
        self.trunk = nn.Sequential(*layers, norm(c), nn.SiLU())
        self.conv_out = nn.Conv2d(c, 3, 3, 1, 1)

    def forward(self, z):
        return self.conv_out(self.trunk(z))


class VectorQuantizer(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.embedding = nn.Embedding(n, dim)
        self.embedding.weight.data.uniform_(-1.0 / n, 1.0 / n)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        e = self.embedding.weight
        d = (flat**2).sum(1, keepdim=True) + (e**2).sum(1) - 2 * flat @ e.t()
        idx = d.argmin(1)
        zq = self.embedding(idx).view(z.shape)
        loss = cfg.beta * ((zq.detach() - z) ** 2).mean() + ((zq - z.detach()) ** 2).mean()
        zq = z + (zq - z).detach()
        return zq.permute(0, 3, 1, 2).contiguous(), loss, idx


class VQModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.quantize = VectorQuantizer(cfg.codes, cfg.z)
        self.quant_conv, self.post_quant_conv = (
            nn.Conv2d(cfg.z, cfg.z, 1),
            nn.Conv2d(cfg.z, cfg.z, 1),
        )

    def forward(self, x):
        quant, loss, _ = self.quantize(self.quant_conv(self.encoder(x)))
        return self.decoder(self.post_quant_conv(quant)), loss


class Perceptual(nn.Module):
    """LPIPS without its learned weights."""

    def __init__(self):
        super().__init__()
        features = vgg16(weights=None).features
        self.slices = nn.ModuleList(features[a:b] for a, b in ((0, 4), (4, 9), (9, 16), (16, 23)))
        self.requires_grad_(False).eval()
        for m in self.modules():
            if isinstance(m, nn.ReLU):
                m.inplace = False

    def forward(self, a, b):
        total = 0
        for part in self.slices:
            a, b = part(a), part(b)
            total = total + (F.normalize(a, dim=1) - F.normalize(b, dim=1)).pow(2).sum(1).mean()
        return total


def NLayerDiscriminator(ndf=64, n=3):
    seq, c = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)], ndf
    for k in range(1, n + 1):
        o, stride = ndf * min(2**k, 8), 2 if k < n else 1
        seq += [
            nn.Conv2d(c, o, 4, stride, 1, bias=False),
            nn.BatchNorm2d(o),
            nn.LeakyReLU(0.2, True),
        ]
        c = o
    return nn.Sequential(*seq, nn.Conv2d(c, 1, 4, 1, 1))


def adaptive_weight(nll, g, last):
    nll_grad = torch.autograd.grad(nll, last, retain_graph=True)[0]
    g_grad = torch.autograd.grad(g, last, retain_graph=True)[0]
    return (nll_grad.norm() / (g_grad.norm() + 1e-4)).clamp(0.0, 1e4).detach() * cfg.disc_weight


def main():
    torch.manual_seed(23)
    model, disc, lpips = VQModel().cuda(), NLayerDiscriminator().cuda(), Perceptual().cuda()
    opt_ae = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.5, 0.9))
    opt_disc = torch.optim.Adam(disc.parameters(), lr=cfg.lr, betas=(0.5, 0.9))
    for step in range(cfg.iterations):
        x = torch.rand(cfg.batch, 3, cfg.resolution, cfg.resolution).mul_(2).sub_(1).cuda()

        xrec, qloss = model(x)
        nll = (x - xrec).abs().mean() + lpips(x, xrec)
        disc.requires_grad_(False)
        g = -disc(xrec).mean()
        w = adaptive_weight(nll, g, model.decoder.conv_out.weight)
        loss = nll + w * g + qloss
        opt_ae.zero_grad()
        loss.backward()
        opt_ae.step()

        disc.requires_grad_(True)
        d_real, d_fake = disc(x.contiguous().detach()), disc(xrec.contiguous().detach())
        d_loss = 0.5 * (F.relu(1.0 - d_real).mean() + F.relu(1.0 + d_fake).mean())
        opt_disc.zero_grad()
        d_loss.backward()
        opt_disc.step()
        print({"step": step, "ae": loss.item(), "disc": d_loss.item(), "weight": w.item()})


if __name__ == "__main__":
    main()
