"""Strengths of magnets from their alloys by a Kolmogorov-Arnold network: B-splines on every edge, grids fitted anew to the data, entropy penalty, LBFGS with line search, double steps."""

import torch
from torch import nn


def b_splines(x, grid, order):
    """x (N, I), grid (I, G) -> bases (N, I, G - order - 1)."""
    x = x[..., None]
    bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
    for k in range(1, order + 1):
        left = (x - grid[:, : -k - 1]) / (grid[:, k:-1] - grid[:, : -k - 1])
        right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k])
        bases = left * bases[..., :-1] + right * bases[..., 1:]
    return bases


class KANLayer(nn.Module):
    def __init__(self, i, o, cells=8, order=3):
        super().__init__()
        step = 2.0 / cells
        knots = torch.arange(-order, cells + order + 1) * step - 1
        self.register_buffer("grid", knots.expand(i, -1).contiguous())
        self.base = nn.Parameter(torch.randn(o, i) / i**0.5)
        self.coef = nn.Parameter(torch.randn(o, i, cells + order) * 0.1 / i**0.5)
        self.cells, self.order = cells, order

    def forward(self, x):
        waves = b_splines(x, self.grid, self.order)
        spline = torch.einsum("nib,oib->no", waves, self.coef)
        return nn.functional.silu(x) @ self.base.t() + spline

    @torch.no_grad()
    def refit(self, x):
        ranked = x.sort(0).values
        inner = ranked[torch.linspace(0, len(x) - 1, self.cells + 1).long().to(x.device)]
        even = torch.lerp(
            ranked[0], ranked[-1], torch.linspace(0, 1, self.cells + 1, device=x.device)[:, None]
        )
        inner = 0.9 * even + 0.1 * inner
        h = (inner[-1] - inner[0]) / self.cells + 1e-3
        k = torch.arange(1, self.order + 1, device=x.device)[:, None]
        self.grid.copy_(torch.cat([inner[:1] - h * k.flip(0), inner, inner[-1:] + h * k]).t())

    def penalty(self):
        size = self.coef.abs().mean(-1)
        p = size / size.sum()
        return size.sum() - (p * (p + 1e-12).log()).sum()


class KAN(nn.Sequential):
    def refit(self, x):
        for layer in self:
            layer.refit(x)
            x = layer(x)


torch.manual_seed(60)
net = KAN(KANLayer(40, 64), KANLayer(64, 64), KANLayer(64, 1)).cuda()
alloys = torch.rand(48_000, 40, device="cuda") * 2 - 1
strength = (alloys[:, :5].prod(1) + torch.sin(3 * alloys[:, 5]) + alloys[:, 6].exp())[:, None]
opt = torch.optim.LBFGS(
    net.parameters(), lr=1, max_iter=4, max_eval=8, history_size=10, line_search_fn="strong_wolfe"
)


def closure():
    opt.zero_grad()
    loss = (net(alloys) - strength).square().mean()
    (loss + 1e-4 * sum(layer.penalty() for layer in net)).backward()
    closure.rmse = loss.detach().sqrt()
    return loss


for step in range(5):
    if step in (0, 2):
        with torch.no_grad():
            net.refit(alloys)
    opt.step(closure)
    print(f"{step} rmse {closure.rmse.item():.4f}")
