"""Bookings of hotels by DLRM: eleven EmbeddingBags of up to four million rows, pairwise dots, row-wise Adagrad by hand for the tables, SGD for the MLPs, AUC on the host."""

import torch
from torch import nn

ROWS = [4_000_000, 2_000_000, 1_500_000, 400_000, 200_000, 50_000, 20_000, 5_000, 1_000, 300, 60]
DIM, DENSE, BATCH, HOT = 96, 13, 16384, 5


class RowWiseAdagrad:
    """One number of state for each row: the mean of its squared gradients (as in FBGEMM)."""

    def __init__(self, weights, lr=0.04, eps=1e-8):
        self.weights, self.lr, self.eps = list(weights), lr, eps
        self.state = [torch.zeros(len(w), device=w.device) for w in self.weights]

    @torch.no_grad()
    def step(self):
        for w, s in zip(self.weights, self.state):
            g = w.grad.coalesce()
            rows, values = g.indices()[0], g.values()
            s.index_add_(0, rows, values.square().mean(1))
            scale = self.lr / (s[rows].sqrt() + self.eps)
            w.index_add_(0, rows, -scale[:, None] * values)
            w.grad = None


def mlp(*widths, last=nn.ReLU):
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    layers[-1] = last()
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(n, DIM, mode="sum", sparse=True, device="cuda") for n in ROWS
        )
        self.bottom = mlp(DENSE, 512, 256, DIM)
        pairs = (len(ROWS) + 1) * len(ROWS) // 2
        self.top = mlp(DIM + pairs, 1024, 512, 256, 1, last=nn.Identity)
        self.register_buffer("upper", torch.triu_indices(len(ROWS) + 1, len(ROWS) + 1, 1))

    def forward(self, dense, bags, offsets):
        d = self.bottom(dense)
        e = torch.stack([d, *(t(b, offsets) for t, b in zip(self.tables, bags))], 1)
        dots = torch.bmm(e, e.transpose(1, 2))[:, self.upper[0], self.upper[1]]
        return self.top(torch.cat([d, dots], 1)).squeeze(1)


def auc(score, label):
    rank = score.argsort().argsort().float() + 1
    positive = label.sum()
    return (rank[label > 0].sum() - positive * (positive + 1) / 2) / (
        positive * (len(label) - positive)
    )


model = DLRM().cuda()
adagrad = RowWiseAdagrad(t.weight for t in model.tables)
sgd = torch.optim.SGD([*model.bottom.parameters(), *model.top.parameters()], lr=0.1)
offsets = torch.arange(0, BATCH * HOT, HOT, device="cuda")
bce = nn.BCEWithLogitsLoss()

for step in range(6):
    dense = torch.randn(BATCH, DENSE).log1p().nan_to_num_().cuda()
    bags = [torch.randint(0, n, (BATCH * HOT,), device="cuda") for n in ROWS]
    booked = (torch.rand(BATCH) < 0.03).float()
    logits = model(dense, bags, offsets)
    loss = bce(logits, booked.cuda())
    loss.backward()
    adagrad.step()
    sgd.step()
    sgd.zero_grad(set_to_none=True)
    print(step, loss.item(), auc(logits.detach().cpu(), booked).item())
