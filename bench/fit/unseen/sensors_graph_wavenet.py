"""Traffic speeds at 207 sensors: Graph WaveNet, gated dilated convolutions, an adaptive adjacency, masked MAE."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConv(nn.Module):
    def __init__(self, cin, cout, supports, order=2, dropout=0.3):
        super().__init__()
        self.mix = nn.Conv2d((order * supports + 1) * cin, cout, 1)
        self.order, self.dropout = order, dropout

    def forward(self, x, supports):
        out = [x]
        for a in supports:
            h = x
            for _ in range(self.order):
                h = torch.einsum("ncvl,vw->ncwl", h, a).contiguous()
                out.append(h)
        return F.dropout(self.mix(torch.cat(out, 1)), self.dropout, self.training)


class GraphWaveNet(nn.Module):
    def __init__(self, nodes=207, channels=32, skip=256, end=512, blocks=4, layers=2, horizon=12):
        super().__init__()
        self.e1 = nn.Parameter(torch.randn(nodes, 10))
        self.e2 = nn.Parameter(torch.randn(10, nodes))
        self.start = nn.Conv2d(2, channels, 1)
        self.filters, self.gates, self.graphs = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.skips, self.norms = nn.ModuleList(), nn.ModuleList()
        self.receptive = 1
        for _ in range(blocks):
            for k in range(layers):
                dilation = 2**k
                self.receptive += dilation
                self.filters.append(nn.Conv2d(channels, channels, (1, 2), dilation=dilation))
                self.gates.append(nn.Conv2d(channels, channels, (1, 2), dilation=dilation))
                self.skips.append(nn.Conv2d(channels, skip, 1))
                self.graphs.append(GraphConv(channels, channels, 3))
                self.norms.append(nn.BatchNorm2d(channels))
        self.end1, self.end2 = nn.Conv2d(skip, end, 1), nn.Conv2d(end, horizon, 1)

    def forward(self, x, supports):
        supports = supports + [F.softmax(F.relu(self.e1 @ self.e2), dim=1)]
        x = self.start(F.pad(x, (max(0, self.receptive - x.size(3)), 0)))
        skip = 0
        for f, g, s, gc, bn in zip(self.filters, self.gates, self.skips, self.graphs, self.norms):
            residual = x
            x = torch.tanh(f(x)) * torch.sigmoid(g(x))
            out = s(x)
            skip = out + (skip[..., -out.size(3) :] if torch.is_tensor(skip) else 0)
            x = bn(gc(x, supports) + residual[..., -x.size(3) :])
        return self.end2(F.relu(self.end1(F.relu(skip))))


def masked_mae(pred, real):
    mask = (real != 0).float()
    mask = mask / mask.mean()
    return torch.nan_to_num((pred - real).abs() * mask).mean()


class Engine:
    def __init__(self, scaler, lr=1e-3, decay=1e-4):
        self.mean, self.std = scaler
        self.model = GraphWaveNet().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr, weight_decay=decay)
        a = (torch.rand(207, 207) < 0.05).float() + torch.eye(207)
        forward, backward = a / a.sum(1, keepdim=True), a.T / a.T.sum(1, keepdim=True)
        self.supports = [forward.cuda(), backward.cuda()]

    def train(self, x, y):
        self.model.train()
        self.optimizer.zero_grad()
        out = self.model(x, self.supports).squeeze(-1)
        loss = masked_mae(out * self.std + self.mean, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5)
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    speeds = torch.rand(2000, 207) * 70
    engine = Engine((speeds.mean().item(), speeds.std().item()))
    losses = []
    for it in range(8):
        at = torch.randint(0, len(speeds) - 24, (64,)).tolist()
        past = torch.stack([speeds[i : i + 12].T for i in at])
        clock = torch.rand(64, 1, 12).expand(-1, 207, -1)
        x = torch.stack([(past - engine.mean) / engine.std, clock], 1)
        y = torch.stack([speeds[i + 12 : i + 24] for i in at])
        losses.append(engine.train(x.cuda(), y.cuda()))
    print("mae", sum(losses) / len(losses))
