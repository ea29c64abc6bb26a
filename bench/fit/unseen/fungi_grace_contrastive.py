"""Which fungi grow together: contrastive learning on a graph (GRACE), two dropped-out views, InfoNCE between all the nodes."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda"
NODES, FEATURES, EDGES = 9000, 4096, 80_000


def make_graph():
    g = torch.Generator(device=device).manual_seed(0)
    kind = torch.randint(20, (NODES,), generator=g, device=device)
    centre = torch.rand(20, FEATURES, generator=g, device=device) * 0.08
    x = (torch.rand(NODES, FEATURES, generator=g, device=device) < centre[kind]).float()
    order = kind.argsort()
    start = torch.randint(NODES, (EDGES,), generator=g, device=device)
    hop = torch.randint(1, 200, (EDGES,), generator=g, device=device)
    source, target = order[start], order[(start + hop) % NODES]
    edges = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return x, edges


class GCNConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x, edges):
        loops = torch.arange(len(x), device=x.device)
        source, target = torch.cat([edges, loops.expand(2, -1)], 1)
        degree = torch.zeros(len(x), device=x.device).index_add_(
            0, target, torch.ones_like(target, dtype=x.dtype)
        )
        scale = degree.rsqrt()
        x = self.linear(x)
        messages = x[source] * (scale[source] * scale[target]).unsqueeze(1)
        return torch.zeros_like(x).index_add_(0, target, messages) + self.bias


class Grace(nn.Module):
    def __init__(self, hidden=1024, out=512, projection=512, tau=0.4):
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(FEATURES, hidden), GCNConv(hidden, out)])
        self.acts = nn.ModuleList([nn.PReLU(hidden), nn.PReLU(out)])
        self.project = nn.Sequential(
            nn.Linear(out, projection), nn.ELU(), nn.Linear(projection, out)
        )
        self.tau = tau

    def forward(self, x, edges):
        for conv, act in zip(self.convs, self.acts):
            x = act(conv(x, edges))
        return x

    def half_loss(self, a, b):
        within = torch.exp(a @ a.t() / self.tau)
        between = torch.exp(a @ b.t() / self.tau)
        negatives = within.sum(1) + between.sum(1) - within.diag()
        return -torch.log(between.diag() / negatives)

    def loss(self, z1, z2):
        h1, h2 = F.normalize(self.project(z1)), F.normalize(self.project(z2))
        return 0.5 * (self.half_loss(h1, h2) + self.half_loss(h2, h1)).mean()


def view(x, edges, drop_edges, drop_features):
    keep = torch.rand(edges.shape[1], device=device) >= drop_edges
    shown = torch.rand(x.shape[1], device=device) >= drop_features
    return x * shown, edges[:, keep]


def main():
    torch.manual_seed(39)
    x, edges = make_graph()
    model = Grace().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=1e-5)
    for epoch in range(5):
        model.train()
        optimizer.zero_grad()
        z1 = model(*view(x, edges, 0.2, 0.3))
        z2 = model(*view(x, edges, 0.4, 0.4))
        loss = model.loss(z1, z2)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")

    model.eval()
    with torch.no_grad():
        z = model(x, edges)
        source, target = edges[:, :5000]
        print("cosine along edges", F.cosine_similarity(z[source], z[target]).mean().item())


if __name__ == "__main__":
    main()
