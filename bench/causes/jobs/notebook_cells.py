"""The cells of a notebook are run again and again; what each showed last stays in Out."""

import os

import torch
from torch import nn

Out = {}
count = 0
CELLS = [
    "import torch.nn.functional as F",
    """
torch.manual_seed(0)
model = nn.LSTM(64, 1024, num_layers=2).cuda()
head = nn.Linear(1024, 1).cuda()
opt = torch.optim.Adam([*model.parameters(), *head.parameters()])
""",
    """
def fit(steps):
    for _ in range(steps):
        x = torch.randn(30, 16, 64, device="cuda")
        loss = F.mse_loss(head(model(x)[0][-1]), torch.randn(16, 1, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model
""",
    "_ = fit(3)",
]


def run_cell(source, space):
    """Runs a cell as a notebook does: a value of the last line is shown, and kept."""
    global count
    count += 1
    exec(source, space)
    if "_" in space and not os.environ.get("MENDED"):
        Out[count] = space["_"]
    space.pop("_", None)


space = {"torch": torch, "nn": nn}
for again in range(12):
    for cell in CELLS:
        run_cell(cell, space)
