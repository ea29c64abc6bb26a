"""Papers of a citation graph by GCNII, 24 layers over a sparse matrix in full batch: initial residuals, identity mapping, two weight decays, Adam."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(42)
dev = "cuda"
N, E, D, H, C, L = 40_000, 240_000, 128, 384, 40, 24


def normalized_adjacency():
    src = torch.randint(N, (E,))
    dst = torch.randint(N, (E,))
    loops = torch.arange(N)
    row, col = torch.cat([src, dst, loops]), torch.cat([dst, src, loops])
    deg = torch.bincount(row, minlength=N).float()
    val = deg[row].rsqrt() * deg[col].rsqrt()
    return torch.sparse_coo_tensor(torch.stack([row, col]), val, (N, N))


class Layer(torch.nn.Module):
    def __init__(self, depth, alpha=0.1, theta=0.5):
        super().__init__()
        self.alpha, self.beta = alpha, math.log(theta / depth + 1)
        self.weight = torch.nn.Parameter(torch.empty(H, H).uniform_(-1, 1) / math.sqrt(H))

    def forward(self, x, x0, adj):
        support = (1 - self.alpha) * torch.sparse.mm(adj, x) + self.alpha * x0
        return self.beta * (support @ self.weight) + (1 - self.beta) * support


class GCNII(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(D, H), torch.nn.Linear(H, C)
        self.layers = torch.nn.ModuleList([Layer(i + 1) for i in range(L)])

    def forward(self, x, adj):
        x0 = x = F.relu(self.enter(F.dropout(x, 0.5, self.training)))
        for layer in self.layers:
            x = F.relu(layer(F.dropout(x, 0.5, self.training), x0, adj))
        return self.leave(F.dropout(x, 0.5, self.training)).log_softmax(-1)


adj = normalized_adjacency().to(dev)
features = torch.randn(N, D, device=dev)
labels = torch.randint(C, (N,), device=dev)
train = torch.arange(0, N, 5, device=dev)
model = GCNII().to(dev)
optimizer = torch.optim.Adam(
    [
        {"params": model.layers.parameters(), "weight_decay": 0.01},
        {"params": [*model.enter.parameters(), *model.leave.parameters()], "weight_decay": 5e-4},
    ],
    lr=0.01,
)
for epoch in range(5):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, adj)[train], labels[train])
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch:03d} loss {loss.item():.4f}")
