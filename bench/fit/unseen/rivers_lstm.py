"""Floods from weather: a sequence-first encoder-decoder of LSTMs with attention over time, teacher forcing, quantile loss."""

import random

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=2, dropout=0.2)

    def forward(self, x):  # (time, batch, features)
        return self.rnn(torch.tanh(self.inp(x)))


class Decoder(nn.Module):
    def __init__(self, hidden, quantiles):
        super().__init__()
        self.cell = nn.LSTMCell(1 + hidden, hidden)
        self.score = nn.Linear(2 * hidden, hidden)
        self.v = nn.Linear(hidden, 1, bias=False)
        self.out = nn.Linear(2 * hidden, quantiles)

    def forward(self, memory, state, y, steps, forcing):
        h, c = state[0][-1], state[1][-1]
        last, outs = y[0], []
        for t in range(steps):
            query = h.unsqueeze(0).expand(len(memory), -1, -1)
            w = self.v(torch.tanh(self.score(torch.cat([memory, query], -1)))).softmax(0)
            context = (w * memory).sum(0)
            h, c = self.cell(torch.cat([last, context], -1), (h, c))
            q = self.out(torch.cat([h, context], -1))
            outs.append(q)
            last = y[t] if random.random() < forcing else q[:, 1:2].detach()
        return torch.stack(outs)


class Forecaster(nn.Module):
    def __init__(self, n_in=24, hidden=192, quantiles=3):
        super().__init__()
        self.encoder, self.decoder = Encoder(n_in, hidden), Decoder(hidden, quantiles)

    def forward(self, x, y, forcing=0.5):
        memory, state = self.encoder(x)
        return self.decoder(memory, state, y, len(y), forcing)


def quantile_loss(pred, y, qs=(0.1, 0.5, 0.9)):
    loss = 0
    for k, q in enumerate(qs):
        e = y.squeeze(-1) - pred[..., k]
        loss = loss + torch.max(q * e, (q - 1) * e).mean()
    return loss


if __name__ == "__main__":
    random.seed(0)
    model = Forecaster().to("cuda")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(5):
        x = torch.randn(240, 96, 24).to("cuda")
        y = torch.randn(24, 96, 1).to("cuda")
        optimizer.zero_grad()
        loss = quantile_loss(model(x, y), y)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")
