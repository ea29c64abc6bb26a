"""A script that uses the library on a virtual GPU."""

JOB = """
import torch, oomph, logging, sys
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
make = lambda n: torch.empty(n, 1024)
def step(x):
    loss = model(x.cuda()).pow(2).mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


def check(oomph, code, *options, env=None):
    run = oomph(
        JOB + code + "\nprint('checked')", "--memory", "2GiB", "--no-measure", *options, env=env
    )
    assert "checked" in run.out, run.err
    return run
