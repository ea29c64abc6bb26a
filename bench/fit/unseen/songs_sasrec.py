"""SASRec for songs: causal self-attention over listening histories, cross-entropy over the whole catalogue, Adam."""

import torch
import torch.nn as nn


class SASRec(nn.Module):
    def __init__(self, songs, width=128, layers=3, heads=2, length=100, drop=0.2):
        super().__init__()
        self.item = nn.Embedding(songs + 1, width, padding_idx=0)
        self.place = nn.Embedding(length, width)
        self.drop = nn.Dropout(drop)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, drop, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.item.weight, std=0.02)

    def forward(self, seq):
        n = seq.size(1)
        causal = torch.full((n, n), float("-inf"), device=seq.device).triu(1)
        x = self.drop(self.item(seq) + self.place.weight[:n])
        return self.norm(self.encoder(x, mask=causal))


def histories(songs, users=4000, length=101):
    g = torch.Generator().manual_seed(4)
    data = torch.randint(1, songs + 1, (users, length), generator=g)
    start = torch.randint(0, length // 2, (users, 1), generator=g)
    return data.masked_fill(torch.arange(length) < start, 0)


def train(songs=60_000, batch=128, steps=8):
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = SASRec(songs).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    data = histories(songs)
    for step in range(steps):
        rows = data[torch.randperm(len(data))[:batch]].to(device)
        seq, following = rows[:, :-1], rows[:, 1:]
        hidden = model(seq)
        # One position in four is scored, as the catalogue is large.
        hidden, following = (
            hidden[:, 3::4].reshape(-1, hidden.size(-1)),
            following[:, 3::4].reshape(-1),
        )
        scores = hidden @ model.item.weight.T
        loss = nn.functional.cross_entropy(scores, following, ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 1:
            print("step", step, "loss", loss.item())


train()
