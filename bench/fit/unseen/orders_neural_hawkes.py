"""When does which event come next in an order book? Neural Hawkes process: an LSTM whose memory decays in continuous
time between events; the integral of the intensities by Monte Carlo. Streams of different length, packed by hand."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS, HIDDEN, SAMPLES = 48, 512, 16


class ContinuousLSTMCell(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gates = nn.Linear(2 * hidden, 7 * hidden)

    def forward(self, x, h, c, c_bar):
        g = self.gates(torch.cat([x, h], 1))
        i, f, o, i_bar, f_bar, z, delta = g.chunk(7, 1)
        z = torch.tanh(z)
        c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * z
        c_bar = torch.sigmoid(f_bar) * c_bar + torch.sigmoid(i_bar) * z
        return c_new, c_bar, torch.sigmoid(o), F.softplus(delta)


def decay(c, c_bar, o, delta, dt):
    c_t = c_bar + (c - c_bar) * torch.exp(-delta * dt)
    return c_t, o * torch.tanh(c_t)


class NeuralHawkes(nn.Module):
    def __init__(self, kinds=KINDS, hidden=HIDDEN):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(kinds + 1, hidden)  # the last one opens a stream
        self.cell = ContinuousLSTMCell(hidden)
        self.to_rate = nn.Linear(hidden, kinds)
        self.log_scale = nn.Parameter(torch.zeros(kinds))

    def rate(self, h):
        scale = self.log_scale.exp()
        return scale * F.softplus(self.to_rate(h) / scale)

    def loss(self, kinds, gaps, mask):
        b, t = kinds.shape
        h = c = c_bar = torch.zeros(b, self.hidden, device=kinds.device)
        inputs = torch.cat([kinds.new_full((b, 1), KINDS), kinds[:, :-1]], 1)
        states, at_event = [], []
        for step in range(t):
            c, c_bar, o, delta = self.cell(self.embed(inputs[:, step]), h, c, c_bar)
            states.append(torch.stack([c, c_bar, o, delta]))
            c, h = decay(c, c_bar, o, delta, gaps[:, step, None])
            at_event.append(h)
        rates = self.rate(torch.stack(at_event, 1))
        log_rate = rates.gather(2, kinds[..., None]).squeeze(2).clamp(min=1e-9).log()
        # integral of the total intensity over every gap, at uniformly drawn times
        c, c_bar, o, delta = torch.stack(states, 2).unsqueeze(3)
        when = gaps[..., None] * torch.rand(b, t, SAMPLES, device=gaps.device)
        _, h = decay(c, c_bar, o, delta, when[..., None])
        total = self.rate(h).sum(-1).mean(-1) * gaps
        n = mask.sum()
        return -(log_rate * mask).sum() / n + (total * mask).sum() / n


def streams(n, rng):
    out = []
    for _ in range(n):
        length = int(min(160, max(20, rng.lognormvariate(4.5, 0.5))))
        kinds = [rng.randrange(KINDS) for _ in range(length)]
        gaps = [rng.expovariate(1.0 + (k % 5)) for k in kinds]
        out.append((torch.tensor(kinds), torch.tensor(gaps)))
    return out


def pad(batch, device):
    kinds = nn.utils.rnn.pad_sequence([k for k, _ in batch], batch_first=True)
    gaps = nn.utils.rnn.pad_sequence([g for _, g in batch], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(k)) for k, _ in batch], batch_first=True)
    return kinds.to(device), gaps.to(device), mask.to(device)


def main(batch=192, steps=3):
    torch.manual_seed(0)
    rng = random.Random(0)
    device = "cuda"
    data = sorted(streams(batch * steps, rng), key=lambda s: len(s[0]))  # buckets of similar length
    buckets = [data[i : i + batch] for i in range(0, len(data), batch)]
    rng.shuffle(buckets)
    model = NeuralHawkes().to(device)
    opt = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for step, bucket in enumerate(buckets):
        kinds, gaps, mask = pad(bucket, device)
        loss = model.loss(kinds, gaps, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(
            f"step {step} events {int(mask.sum())} longest {kinds.size(1)} nll/event {loss.item():.4f}"
        )


if __name__ == "__main__":
    main()
