"""A map of cells: how alike all are gives each its weight, a network learns where they go, and how alike they are there is compared. The matrices have almost the same size."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
CELLS, NEW, GENES = 15000, 300, 1000


def crowding(cells):
    """How many others are like each cell."""
    alike = cells @ cells.T
    alike.clamp_(min=0).pow_(2)
    return alike.sum(1) / len(cells)


class Layout(nn.Module):
    """Where a cell goes, from its genes."""

    def __init__(self, genes=GENES, wide=2000, d=2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(genes, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, d)
        )

    def forward(self, cells):
        return self.net(cells)


class Mapper:
    def __init__(self, cells):
        self.cells = F.normalize(cells, dim=1)
        self.weights = crowding(self.cells)
        if MENDED:
            torch.cuda.empty_cache()
        self.layout = Layout().cuda()
        self.optimizer = torch.optim.Adam(self.layout.parameters(), lr=1e-3)

    def fit(self, steps=5, batch=256):
        for _ in range(steps):
            rows = torch.randint(0, len(self.cells), (batch,), device="cuda")
            cells, weights = self.cells[rows], self.weights[rows]
            places = self.layout(cells)
            near, like = torch.exp(-torch.cdist(places, places)), cells @ cells.T
            loss = ((near - like).square() * weights[:, None]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def spread(self, new):
        """How far apart all cells are on the map, with those that came later."""
        places = torch.cat([self.layout(part) for part in (*self.cells.split(2000), new)])
        near = places @ places.T
        near.neg_().exp_()
        return near.mean().item()


mapper = Mapper(torch.rand(CELLS, GENES, device="cuda"))
print(mapper.fit())
print(mapper.spread(torch.rand(NEW, GENES, device="cuda")))
