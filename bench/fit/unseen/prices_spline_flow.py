"""Prices of options as a density: a neural spline flow, rational-quadratic couplings, likelihood in float32, AdamW, no images."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BINS, BOUND = 16, 4.0


def spline(x, widths, heights, slopes):
    """Monotonic rational-quadratic spline of each number in x (n x d) with its own knots; identity outside of the bound."""
    inside = (x.abs() < BOUND).to(x.dtype)
    xc = x.clamp(-BOUND + 1e-4, BOUND - 1e-4)
    w = (1e-3 + (1 - 1e-3 * BINS) * widths.softmax(-1)) * 2 * BOUND
    h = (1e-3 + (1 - 1e-3 * BINS) * heights.softmax(-1)) * 2 * BOUND
    left = F.pad(w.cumsum(-1), (1, 0))[..., :-1] - BOUND
    low = F.pad(h.cumsum(-1), (1, 0))[..., :-1] - BOUND
    d = F.pad(F.softplus(slopes) + 1e-3, (1, 1), value=1.0)

    index = (xc[..., None] >= left).sum(-1, keepdim=True).sub(1).clamp(0, BINS - 1)
    pick = lambda t: t.gather(-1, index).squeeze(-1)
    wk, hk, xk, yk, d0 = map(pick, (w, h, left, low, d[..., :-1]))
    d1 = pick(d[..., 1:])
    s = hk / wk
    t = ((xc - xk) / wk).clamp(0, 1)
    tt = t * (1 - t)
    bottom = s + (d1 + d0 - 2 * s) * tt
    y = yk + hk * (s * t * t + d0 * tt) / bottom
    slope = s * s * (d1 * t * t + 2 * s * tt + d0 * (1 - t) ** 2)
    logdet = slope.clamp(min=1e-9).log() - 2 * bottom.clamp(min=1e-9).log()
    return inside * y + (1 - inside) * x, inside * logdet


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, hidden),
            nn.ELU(),
            nn.Linear(hidden, hidden),
            nn.ELU(),
            nn.Linear(hidden, self.half * (3 * BINS - 1)),
        )

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        raw = self.net(a).view(len(x), self.half, 3 * BINS - 1)
        b, logdet = spline(b, *raw.split([BINS, BINS, BINS - 1], -1))
        return torch.cat([b, a] if self.flip else [a, b], -1), logdet.sum(-1)


class Flow(nn.Module):
    def __init__(self, dim=64, hidden=512, depth=6):
        super().__init__()
        self.steps = nn.ModuleList([Coupling(dim, hidden, i % 2 == 1) for i in range(depth)])

    def log_prob(self, x):
        total = 0
        for step in self.steps:
            x, logdet = step(x)
            total = total + logdet
        base = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        return base.log_prob(x).sum(-1) + total


def main():
    flow = Flow().to("cuda")
    opt = torch.optim.AdamW(flow.parameters(), lr=5e-4)
    table = torch.randn(5 * 14336, 64)
    for chunk in table.split(14336):
        loss = -flow.log_prob(chunk.to("cuda")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"nll {loss.item():.3f}")


if __name__ == "__main__":
    main()
