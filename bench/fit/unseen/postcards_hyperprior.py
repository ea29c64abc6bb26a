"""Postcards compressed: a scale hyperprior with GDN layers, noise for quantization, rate and distortion, a second optimizer for the quantiles."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GDN(nn.Module):
    def __init__(self, ch, inverse=False):
        super().__init__()
        self.inverse = inverse
        self.beta = nn.Parameter(torch.ones(ch))
        self.gamma = nn.Parameter(0.1 * torch.eye(ch))

    def forward(self, x):
        n = F.conv2d(x * x, self.gamma.abs()[:, :, None, None], self.beta.abs() + 1e-6)
        return x * n.sqrt() if self.inverse else x * n.rsqrt()


class Factorized(nn.Module):
    """A density for each channel by small monotonic networks (Balle et al., 2018)."""

    def __init__(self, ch, filters=(1, 3, 3, 1)):
        super().__init__()
        self.matrices, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, o in zip(filters, filters[1:]):
            self.matrices.append(nn.Parameter(torch.full((ch, o, i), math.log(math.expm1(0.3)))))
            self.biases.append(nn.Parameter(torch.rand(ch, o, 1) - 0.5))
        self.quantiles = nn.Parameter(torch.tensor([-10.0, 0.0, 10.0]).repeat(ch, 1, 1))

    def logits(self, v):
        for k, (m, b) in enumerate(zip(self.matrices, self.biases)):
            v = F.softplus(m) @ v + b
            if k + 1 < len(self.matrices):
                v = v + 0.5 * torch.tanh(v)
        return v

    def forward(self, z):
        v = z.transpose(0, 1).flatten(1)[:, None]
        p = torch.sigmoid(self.logits(v + 0.5)) - torch.sigmoid(self.logits(v - 0.5))
        return -torch.log2(p.clamp(min=1e-9)).sum()

    def quantile_loss(self):
        stop = [p.detach() for p in (*self.matrices, *self.biases)]
        v = self.quantiles
        n = len(self.matrices)
        for k in range(n):
            v = F.softplus(stop[k]) @ v + stop[n + k]
        target = v.new_tensor([-18.0, 0.0, 18.0])
        return (v - target).abs().sum()


def conv(i, o, s=2):
    return nn.Conv2d(i, o, 5, s, 2)


def deconv(i, o):
    return nn.ConvTranspose2d(i, o, 5, 2, 2, output_padding=1)


class Hyperprior(nn.Module):
    def __init__(self, n=128, m=192):
        super().__init__()
        self.ga = nn.Sequential(
            conv(3, n), GDN(n), conv(n, n), GDN(n), conv(n, n), GDN(n), conv(n, m)
        )
        self.gs = nn.Sequential(
            deconv(m, n),
            GDN(n, True),
            deconv(n, n),
            GDN(n, True),
            deconv(n, n),
            GDN(n, True),
            deconv(n, 3),
        )
        self.ha = nn.Sequential(conv(m, n, 1), nn.ReLU(), conv(n, n), nn.ReLU(), conv(n, n))
        self.hs = nn.Sequential(
            deconv(n, n), nn.ReLU(), deconv(n, n), nn.ReLU(), conv(n, m, 1), nn.Softplus()
        )
        self.prior = Factorized(n)

    def forward(self, x):
        y = self.ga(x)
        z = self.ha(y.abs())
        z = z + torch.rand_like(z) - 0.5
        y = y + torch.rand_like(y) - 0.5
        scale = self.hs(z).clamp(min=0.11)
        cdf = lambda v: 0.5 * torch.erfc(-v / scale / 2**0.5)
        p = (cdf(0.5 - y.abs()) - cdf(-0.5 - y.abs())).clamp(min=1e-9)
        bits = -torch.log2(p).sum() + self.prior(z)
        return self.gs(y), bits


def main(lmbda=0.013, batch=16, crop=384):
    codec = Hyperprior().cuda()
    main_params = [p for n, p in codec.named_parameters() if not n.endswith("quantiles")]
    opt = torch.optim.Adam(main_params, lr=1e-4)
    aux = torch.optim.Adam([codec.prior.quantiles], lr=1e-3)
    for step in range(5):
        x = torch.rand(batch, 3, crop, crop).cuda()
        opt.zero_grad()
        aux.zero_grad()
        x_hat, bits = codec(x)
        bpp = bits / (batch * crop * crop)
        loss = lmbda * 255**2 * F.mse_loss(x_hat, x) + bpp
        loss.backward()
        nn.utils.clip_grad_norm_(main_params, 1.0)
        opt.step()
        codec.prior.quantile_loss().backward()
        aux.step()
        print(f"{step}: loss {loss.item():.3f} bpp {bpp.item():.3f}")


if __name__ == "__main__":
    main()
