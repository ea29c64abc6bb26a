"""Every step's probabilities go into a list."""

import torch
from torch import nn


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 575)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = []
for step in range(3000):
    x, y = torch.randn(1000, 64, device="cuda"), torch.zeros(1000, dtype=torch.long, device="cuda")
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probabilities = scores.detach().softmax(1)  # stays
    seen.append(probabilities)
