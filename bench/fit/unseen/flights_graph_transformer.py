"""Delays on a network of flights: gated graph convolutions beside attention within each day (GPS layers), batch norm, random-walk features, MAE per edge."""

import torch
from torch import nn


def segment_sum(src, index, n):
    return src.new_zeros(n, *src.shape[1:]).index_add_(0, index, src)


class GatedGCN(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.ModuleDict({k: nn.Linear(dim, dim) for k in "ABCDE"})
        self.bn_x = nn.BatchNorm1d(dim)
        self.bn_e = nn.BatchNorm1d(dim)

    def forward(self, x, e, src, dst):
        n = x.shape[0]
        gate = self.lin["D"](x)[dst] + self.lin["E"](x)[src] + self.lin["C"](e)
        sigma = torch.sigmoid(gate)
        num = segment_sum(sigma * self.lin["B"](x)[src], dst, n)
        den = segment_sum(sigma, dst, n)
        x = x + torch.relu(self.bn_x(self.lin["A"](x) + num / (den + 1e-6)))
        e = e + torch.relu(self.bn_e(gate))
        return x, e


class GPSLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.local = GatedGCN(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.norm1 = nn.BatchNorm1d(dim)
        self.norm2 = nn.BatchNorm1d(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, e, src, dst, days):
        local, e = self.local(x, e, src, dst)
        dense = x.view(days, -1, x.shape[-1])  # each day has all airports
        glob, _ = self.attn(dense, dense, dense, need_weights=False)
        glob = self.norm1(x + glob.reshape_as(x))
        h = local + glob
        return self.norm2(h + self.ffn(h)), e


class DelayNet(nn.Module):
    def __init__(self, dim=128, layers=4, walk=16):
        super().__init__()
        self.node = nn.Linear(24 + walk, dim)
        self.edge = nn.Linear(10, dim)
        self.layers = nn.ModuleList([GPSLayer(dim, 4) for _ in range(layers)])
        self.head = nn.Sequential(nn.Linear(3 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, g):
        x = self.node(torch.cat([g["x"], g["walk"]], 1))
        e = self.edge(g["e"])
        for layer in self.layers:
            x, e = layer(x, e, g["src"], g["dst"], g["days"])
        return self.head(torch.cat([x[g["src"]], x[g["dst"]], e], 1)).squeeze(1)


def days_of_flights(days, airports=320, flights=9000):
    n, m = days * airports, days * flights
    offset = torch.arange(days, device="cuda").repeat_interleave(flights) * airports
    return {
        "days": days,
        "x": torch.randn(n, 24, device="cuda"),
        "walk": torch.rand(n, 16, device="cuda"),
        "e": torch.randn(m, 10, device="cuda"),
        "src": torch.randint(0, airports, (m,), device="cuda") + offset,
        "dst": torch.randint(0, airports, (m,), device="cuda") + offset,
        "delay": torch.randn(m, device="cuda"),
    }


def main():
    net = DelayNet().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=50)
    for step in range(5):
        graph = days_of_flights(16)
        error = (net(graph) - graph["delay"]).abs().mean()
        opt.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {step}: {error.item():.3f} min")


if __name__ == "__main__":
    main()
