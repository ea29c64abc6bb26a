"""A word model with a GRU under autocast; every word is a class."""
import torch
import torch.nn.functional as F
from torch import nn


class Words(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


model = Words(100_000, 128).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for _ in range(3):
    text = torch.randint(0, 100_000, (32, 81), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 100_000), text[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
