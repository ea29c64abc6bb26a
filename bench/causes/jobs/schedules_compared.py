# %% [markdown]
# # Which learning-rate schedule suits the sensor transformer?

# %%
import os

import torch
from torch import nn
from torch.optim import lr_scheduler

MENDED = os.environ.get("MENDED")
STEPS = 4

# %%
schedules = {
    "constant": lambda o: lr_scheduler.ConstantLR(o, 1.0),
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-3, total_steps=STEPS + 1),
    "linear": lambda o: lr_scheduler.LinearLR(o),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, STEPS),
}


# %%
def experiment(make):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.Linear(16, 512), nn.TransformerEncoder(layer, 9), nn.Linear(512, 16))
    net = net.cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = make(optimizer)
    losses, rates = [], []
    for _ in range(STEPS):
        window = torch.randn(8, 32, 16, device="cuda")
        loss = (net(window[:, :-1]) - window[:, 1:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        rates.append(scheduler.get_last_lr()[0])
    return losses, rates if MENDED else scheduler


# %%
results = {}
for name, make in schedules.items():
    results[name] = experiment(make)

# %%
for name, (losses, schedule) in results.items():
    last = schedule[-1] if MENDED else schedule.get_last_lr()[0]
    print(f"{name:12} {last:.2e}")
