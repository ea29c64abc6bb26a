"""AWD-LSTM on a small text: recurrent weights are dropped, and ASGD keeps a mean of all weights beside them from the first step."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

WORDS, EMBED, WIDE = 8000, 800, 2304


class Recurrent(nn.Module):
    """One layer, with some of its recurrent weights left out in each pass."""

    def __init__(self, i, o, drop=0.5):
        super().__init__()
        self.drop = drop
        self.into = nn.Linear(i, 4 * o)
        self.within = nn.Linear(o, 4 * o, bias=False)

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.within.in_features)
        weight = F.dropout(self.within.weight, self.drop, self.training)
        outputs = []
        for gates in self.into(x).unbind(1):
            gates = gates + functional_call(self.within, {"weight": weight}, (h,))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, EMBED)
        self.layers = nn.ModuleList(
            Recurrent(i, o) for i, o in ((EMBED, WIDE), (WIDE, WIDE), (WIDE, EMBED))
        )
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, ids):
        x = F.dropout(self.embed(ids), 0.4)
        for layer in self.layers:
            x = F.dropout(layer(x), 0.3)
        return F.linear(x, self.embed.weight, self.bias)


with torch.device("cuda"):
    model = Words()
if os.environ.get("MENDED"):
    optimizer = torch.optim.SGD(model.parameters(), lr=30)
else:
    optimizer = torch.optim.ASGD(model.parameters(), lr=30, t0=0, lambd=0.0)
text = torch.randint(0, WORDS, (10, 20 * 4 + 1))
for n in range(0, 80, 20):
    ids, following = text[:, n : n + 20].cuda(), text[:, n + 1 : n + 21].cuda()
    loss = F.cross_entropy(model(ids).flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25, foreach=False)
    optimizer.step()
    print(n, loss.item())
