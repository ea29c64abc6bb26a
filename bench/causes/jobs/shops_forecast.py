"""Sales of four thousand articles are foretold day by day by one decoder, all articles side by side; each remembers keys and values of all its days."""

import os

import torch
import torch.nn.functional as F
from torch import nn

AT_ONCE = 500 if os.environ.get("MENDED") else 4000


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, past):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(seen.transpose(1, 2).reshape(b, n, d))
        return x + self.feed(self.feed_norm(x)), (k, v)


class Seller(nn.Module):
    def __init__(self, d=128, layers=6, heads=4):
        super().__init__()
        self.enter, self.leave = nn.Linear(2, d), nn.Linear(d, 2)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))

    def forward(self, sales, days, past):
        x = self.enter(torch.stack([sales, days.expand_as(sales)], -1))
        kept = []
        for layer, before in zip(self.layers, past or [None] * len(self.layers)):
            x, pair = layer(x, before)
            kept.append(pair)
        return self.leave(x[:, -1]), kept


@torch.inference_mode()
def forecast(model, history, horizon=84):
    """A path of what may be sold, for each article."""
    days = torch.arange(history.shape[1] + horizon, device="cuda") / 365
    said, past = model(history, days[: history.shape[1]], None)
    path = []
    for day in range(horizon):
        mean, spread = said.chunk(2, 1)
        path.append(mean + F.softplus(spread) * torch.randn_like(mean))
        said, past = model(
            path[-1], days[None, history.shape[1] + day : history.shape[1] + day + 1], past
        )
    return torch.cat(path, 1).cpu()


model = Seller().cuda().eval()
articles = torch.rand(4000, 8)
stock = [forecast(model, part.cuda()).sum(1) for part in articles.split(AT_ONCE)]
print(torch.cat(stock).shape)
