"""Letters of old newspapers by a recurrent network with layer norms, written out gate by gate. Its state is as wide as in the famous paper."""

import os

import torch
import torch.nn.functional as F
from torch import nn

WIDE = 1536 if os.environ.get("MENDED") else 6144


class Cell(nn.Module):
    """An LSTM with norms on its gates."""

    def __init__(self, inputs, width):
        super().__init__()
        self.gates = nn.Linear(inputs + width, 4 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)
        self.last = nn.LayerNorm(width)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.norm(self.gates(torch.cat([x, h], 1))).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.last(c))
        return h, c


class Letters(nn.Module):
    def __init__(self, letters=128, embed=512, width=WIDE, layers=2):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(letters, embed)
        self.cells = nn.ModuleList(Cell(embed if n == 0 else width, width) for n in range(layers))
        self.out = nn.Linear(width, letters)

    def forward(self, text):
        zero = torch.zeros(len(text), self.width, device=text.device)
        states, scores = [(zero, zero)] * len(self.cells), []
        for x in self.embed(text).unbind(1):
            for n, cell in enumerate(self.cells):
                states[n] = cell(x, states[n])
                x = states[n][0]
            scores.append(self.out(x))
        return torch.stack(scores, 1)


with torch.device("cuda"):
    model = Letters()
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(3):
    page = torch.randint(0, 128, (4, 25), device="cuda")
    loss = F.cross_entropy(model(page[:, :-1]).flatten(0, 1), page[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
