"""Neighbours of single cells. Lists of them are made between large blocks in what was one piece, and stay there."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch

CELLS, GENES, CHUNK, NEAR = 16_000, 64, 640, 350


def likeness(cells):
    cells = torch.nn.functional.normalize(cells, dim=1)
    return cells @ cells.T


class Neighbours:
    """Blocks of likeness, to be smoothed against each other, and who is near to whom."""

    def __init__(self, cells):
        self.cells, self.near, self.blocks = cells, [], []

    def find(self):
        for chunk in self.cells.split(CHUNK):
            block = chunk @ self.cells.T
            self.blocks.append(block)
            self.near.append(block.topk(NEAR, dim=1).indices)

    def smooth(self):
        level = sum(block.mean() for block in self.blocks) / len(self.blocks)
        self.blocks.clear()
        means = [self.cells[near].mean(1) for rows in self.near for near in rows.split(64)]
        return torch.cat(means) - level


with torch.no_grad():
    cells = torch.randn(CELLS, GENES, device="cuda")
    spread = likeness(cells).mean(0)
    neighbours = Neighbours(cells - spread[:, None])
    neighbours.find()
    smoothed = neighbours.smooth()
    print(likeness(smoothed).mean(0).shape, len(neighbours.near))
