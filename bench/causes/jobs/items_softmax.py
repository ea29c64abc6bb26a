"""A sequential recommender that scores every item at every position."""
import torch
from torch import nn


class NextItem(nn.Module):
    def __init__(self, items, width=96):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2)

    def forward(self, history):
        x = self.items(history)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2).relu()
        return x @ self.items.weight.T


model = NextItem(300_000).cuda()
optimizer = torch.optim.Adagrad(model.parameters())
criterion = nn.CrossEntropyLoss()
for _ in range(3):
    seen = torch.randint(0, 300_000, (32, 50), device="cuda")
    scores = model(seen[:, :-1])
    loss = criterion(scores.flatten(0, 1), seen[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
