"""A recurrent language model in bf16 whose logits are cast to fp32 for the loss."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, words=48000, width=320):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.mix = nn.Conv1d(width, width, 5, padding=4, groups=width)
        self.dense = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.mix(x.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2)
        return torch.matmul(x + self.dense(x), self.words.weight.t())


model = Mixer().to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ids = torch.randint(0, 48000, (16, 513), device="cuda")
    logits = model(ids[:, :-1]).float()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
