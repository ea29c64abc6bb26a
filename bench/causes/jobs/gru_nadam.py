"""A wide GRU encoder and decoder, trained by NAdam."""
import torch
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(self, width=2560):
        super().__init__()
        self.embed = nn.Embedding(8000, width)
        self.encoder = nn.GRU(width, width, 3, batch_first=True)
        self.decoder = nn.GRU(width, width, 3, batch_first=True)
        self.head = nn.Linear(width, 8000)

    def forward(self, source, target):
        _, state = self.encoder(self.embed(source))
        out, _ = self.decoder(self.embed(target), state)
        return self.head(out)


model = Seq2Seq().to("cuda")
optimizer = torch.optim.NAdam(model.parameters())
for _ in range(3):
    source = torch.randint(0, 8000, (4, 12), device="cuda")
    logits = model(source, source)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
