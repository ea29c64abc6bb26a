"""Node classification on a citation graph of ogbn-arxiv's size: full-batch GAT by scatter, no graph library."""

import torch
import torch.nn.functional as F

N, E, FEATURES, CLASSES = 169_343, 1_166_243, 128, 40
HIDDEN, HEADS, LAYERS = 64, 3, 3


def scatter_softmax(src, index, n):
    top = src.new_full((n, src.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, index[:, None].expand_as(src), src.detach(), reduce="amax")
    out = (src - top[index]).exp()
    total = out.new_zeros(n, src.shape[1]).index_add_(0, index, out)
    return out / (total[index] + 1e-16)


class GATConv(torch.nn.Module):
    def __init__(self, i, o, heads, drop=0.1, edge_drop=0.1):
        super().__init__()
        self.heads, self.o = heads, o
        self.lin = torch.nn.Linear(i, heads * o, bias=False)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, o))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, o))
        self.res = torch.nn.Linear(i, heads * o)
        self.drop, self.edge_drop = drop, edge_drop
        torch.nn.init.xavier_uniform_(self.att_src)
        torch.nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        row, col = edge_index
        n = x.shape[0]
        x = F.dropout(x, self.drop, self.training)
        h = self.lin(x).view(n, self.heads, self.o)
        a_src, a_dst = (h * self.att_src).sum(-1), (h * self.att_dst).sum(-1)
        alpha = F.leaky_relu(a_src[row] + a_dst[col], 0.2)
        alpha = scatter_softmax(alpha, col, n)
        alpha = F.dropout(alpha, self.edge_drop, self.training)
        messages = h[row] * alpha.unsqueeze(-1)
        out = torch.zeros_like(h).index_add_(0, col, messages)
        return out.flatten(1) + self.res(x)


class GAT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        width = HIDDEN * HEADS
        self.convs = torch.nn.ModuleList(
            [
                GATConv(FEATURES + CLASSES, HIDDEN, HEADS),
                *(GATConv(width, HIDDEN, HEADS) for _ in range(LAYERS - 2)),
                GATConv(width, CLASSES, 1),
            ]
        )
        self.bns = torch.nn.ModuleList(torch.nn.BatchNorm1d(width) for _ in range(LAYERS - 1))

    def forward(self, x, edge_index):
        for conv, bn in zip(self.convs[:-1], self.bns):
            x = F.dropout(F.elu(bn(conv(x, edge_index))), 0.5, self.training)
        return self.convs[-1](x, edge_index)


def make_graph(seed=0):
    g = torch.Generator().manual_seed(seed)
    edges = torch.randint(N, (2, E), generator=g)
    edges = torch.cat([edges, edges.flip(0), torch.arange(N).expand(2, N)], dim=1)
    x = torch.randn(N, FEATURES, generator=g)
    y = torch.randint(CLASSES, (N,), generator=g)
    train = torch.randperm(N, generator=g)[: int(0.54 * N)]
    return x, edges, y, train


def main():
    device = "cuda"
    x, edges, y, train = (t.to(device) for t in make_graph())
    model = GAT().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002)
    for epoch in range(1, 5):
        model.train()
        # half of the labels go in, the other half is predicted
        order = train[torch.randperm(train.numel(), device=device)]
        known, asked = order[: order.numel() // 2], order[order.numel() // 2 :]
        onehot = torch.zeros(N, CLASSES, device=device)
        onehot[known, y[known]] = 1
        optimizer.zero_grad()
        pred = model(torch.cat([x, onehot], dim=-1), edges)
        loss = F.cross_entropy(pred[asked], y[asked], reduction="none")
        eps = 1 - 0.6931471805599453
        loss = (torch.log(eps + loss) - torch.log(torch.tensor(eps))).mean()
        loss.backward()
        optimizer.step()
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}")


main()
