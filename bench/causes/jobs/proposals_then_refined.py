"""Where are the reefs? A coarse network proposes regions of the sonar map, a second refines them."""

import os

import torch
from torch import nn
from torch.nn import functional as F

MENDED = os.environ.get("MENDED")
device = "cuda"

# --- the coarse network -------------------------------------------------------
coarse = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64 * 64, 6144), nn.ReLU(),
    nn.Linear(6144, 6144), nn.ReLU(),
    nn.Linear(6144, 32 * 32),
).to(device)  # fmt: skip
optimizer_coarse = torch.optim.Adam(coarse.parameters(), lr=1e-4)
for step in range(3):
    sonar = torch.randn(64, 1, 64, 64, device=device)
    reef = torch.rand(64, 32 * 32, device=device)
    loss = F.binary_cross_entropy_with_logits(coarse(sonar), reef)
    optimizer_coarse.zero_grad()
    loss.backward()
    optimizer_coarse.step()

sea = torch.randn(256, 1, 64, 64, device=device)
with torch.no_grad():
    proposals = coarse(sea).topk(16, 1).indices.cpu()
if MENDED:
    del coarse, optimizer_coarse, loss

# --- the fine network ---------------------------------------------------------
fine = nn.Sequential(
    nn.Linear(24 * 24, 7168), nn.ReLU(),
    nn.Linear(7168, 7168), nn.ReLU(),
    nn.Linear(7168, 24 * 24),
).to(device)  # fmt: skip
optimizer_fine = torch.optim.Adam(fine.parameters(), lr=1e-4)
for step in range(3):
    rows, columns = proposals[step] // 32, proposals[step] % 32
    patches = torch.stack(
        [
            sea[step, 0, r : r + 24, c : c + 24].flatten()
            for r, c in zip(rows.tolist(), columns.tolist())
        ]
    )
    outline = torch.rand_like(patches)
    loss = F.binary_cross_entropy_with_logits(fine(patches), outline)
    optimizer_fine.zero_grad()
    loss.backward()
    optimizer_fine.step()
