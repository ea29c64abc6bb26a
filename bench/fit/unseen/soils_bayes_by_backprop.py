"""Soil properties out of infrared spectra with uncertainty: Bayes by Backprop. Every weight has a mean and a width, is drawn
anew for each forward pass, and pays a KL against a scale-mixture prior. Two draws a step."""

import math

import torch
import torch.nn.functional as F
from torch import nn

WAVELENGTHS, PROPERTIES = 4200, 12


class ScaleMixture:
    def __init__(self, pi=0.5, sigma1=math.exp(-0.5), sigma2=math.exp(-6)):
        self.pi, self.sigma1, self.sigma2 = pi, sigma1, sigma2

    def log_prob(self, w):
        def gauss(sigma):
            return -0.5 * (w / sigma) ** 2 - math.log(sigma) - 0.5 * math.log(2 * math.pi)

        return torch.logaddexp(
            math.log(self.pi) + gauss(self.sigma1), math.log(1 - self.pi) + gauss(self.sigma2)
        )


class Gaussian(nn.Module):
    """A weight: mean, rho with sigma = softplus(rho), and the KL of the last draw."""

    def __init__(self, *shape, spread):
        super().__init__()
        self.mu = nn.Parameter(torch.empty(*shape).uniform_(-spread, spread))
        self.rho = nn.Parameter(torch.full(shape, -5.0))

    def draw(self, prior):
        sigma = F.softplus(self.rho)
        eps = torch.randn_like(sigma)
        w = self.mu + sigma * eps
        log_q = -sigma.log() - 0.5 * eps.square() - 0.5 * math.log(2 * math.pi)
        return w, (log_q - prior.log_prob(w)).sum()


class BayesLinear(nn.Module):
    def __init__(self, cin, cout, prior):
        super().__init__()
        self.weight = Gaussian(cout, cin, spread=cin**-0.5)
        self.bias = Gaussian(cout, spread=cin**-0.5)
        self.prior = prior

    def forward(self, x):
        if self.training:
            w, kl_w = self.weight.draw(self.prior)
            b, kl_b = self.bias.draw(self.prior)
            self.kl = kl_w + kl_b
        else:
            w, b = self.weight.mu, self.bias.mu
        return F.linear(x, w, b)


class SpectraNet(nn.Module):
    def __init__(self, width=5000, depth=4):
        super().__init__()
        prior = ScaleMixture()
        sizes = [WAVELENGTHS] + [width] * depth
        self.layers = nn.ModuleList(BayesLinear(a, b, prior) for a, b in zip(sizes, sizes[1:]))
        self.head = BayesLinear(width, 2 * PROPERTIES, prior)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        mean, log_var = self.head(x).chunk(2, 1)
        return mean, log_var.clamp(-6, 4)

    def kl(self):
        return sum(m.kl for m in self.modules() if isinstance(m, BayesLinear))


def spectra(n, device):
    """Smooth curves out of a few absorption bands; the properties are weights of the bands."""
    axis = torch.linspace(0, 1, WAVELENGTHS, device=device)
    centre, width = torch.linspace(0.05, 0.95, PROPERTIES, device=device), 0.04
    bands = torch.exp(-0.5 * ((axis - centre[:, None]) / width) ** 2)
    y = torch.rand(n, PROPERTIES, device=device)
    return y @ bands + 0.02 * torch.randn(n, WAVELENGTHS, device=device), y


def main(batch=1024, steps=3, draws=2, minibatches=400):
    torch.manual_seed(4)
    device = "cuda"
    with torch.device(device):
        net = SpectraNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step in range(steps):
        x, y = spectra(batch, device)
        net.train()
        opt.zero_grad()
        nll_sum = kl_sum = 0.0
        for _ in range(draws):
            mean, log_var = net(x)
            nll = 0.5 * (log_var + (y - mean) ** 2 / log_var.exp()).sum()
            kl = net.kl() / minibatches
            ((nll + kl) / (draws * batch)).backward()
            nll_sum += nll.item() / draws
            kl_sum += kl.item() / draws
        opt.step()
        net.eval()
        with torch.no_grad():
            rmse = (net(x)[0] - y).square().mean().sqrt()
        print(
            f"step {step} nll {nll_sum / batch:.3f} kl {kl_sum / batch:.3f} rmse of the means {rmse.item():.3f}"
        )


if __name__ == "__main__":
    main()
