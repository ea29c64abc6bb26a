"""Tours of couriers built stop by stop by an attention model: REINFORCE against a greedy copy of itself, masks of visited stops, batch norm in the encoder, Adam, costs by gather."""

import copy
import math

import torch
import torch.nn as nn

STOPS, DIM, HEADS, BATCH = 40, 128, 8, 1024
gpu = torch.device("cuda")


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(DIM, 512), nn.ReLU(), nn.Linear(512, DIM))
        self.b1, self.b2 = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)

    def forward(self, x):
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = self.b1(x.flatten(0, 1)).view_as(x)
        x = x + self.feed(x)
        return self.b2(x.flatten(0, 1)).view_as(x)


class Courier(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.start = nn.Linear(2, DIM)
        self.encoder = nn.Sequential(*(Mixer() for _ in range(depth)))
        self.keys = nn.Linear(DIM, 3 * DIM, bias=False)
        self.whole = nn.Linear(DIM, DIM, bias=False)
        self.place = nn.Linear(2 * DIM, DIM, bias=False)
        self.join = nn.Linear(DIM, DIM, bias=False)
        self.nothing = nn.Parameter(torch.randn(2 * DIM) / DIM**0.5)

    def forward(self, xy, greedy):
        h = self.encoder(self.start(xy))
        b = len(h)
        k, v, last_key = self.keys(h).chunk(3, -1)
        k, v = (z.view(b, STOPS, HEADS, -1).transpose(1, 2) for z in (k, v))
        whole = self.whole(h.mean(1))
        visited = torch.zeros(b, STOPS, dtype=torch.bool, device=h.device)
        rows = torch.arange(b, device=h.device)
        tour, logs = [], []
        where = self.nothing.expand(b, -1)
        for _ in range(STOPS):
            q = (whole + self.place(where)).view(b, HEADS, 1, -1)
            fit = (q @ k.transpose(-1, -2)) / math.sqrt(DIM // HEADS)
            fit = fit.masked_fill(visited[:, None, None], -1e9).softmax(-1)
            glimpse = self.join((fit @ v).flatten(1))
            logits = 10 * torch.tanh((last_key @ glimpse[:, :, None]).squeeze(2) / math.sqrt(DIM))
            log_p = logits.masked_fill(visited, -1e9).log_softmax(-1)
            nxt = log_p.argmax(1) if greedy else log_p.exp().multinomial(1).squeeze(1)
            logs.append(log_p.gather(1, nxt[:, None]).squeeze(1))
            tour.append(nxt)
            visited = visited.scatter(1, nxt[:, None], True)
            where = torch.cat([h[rows, tour[0]], h[rows, nxt]], -1)
        return torch.stack(tour, 1), torch.stack(logs, 1).sum(1)


def length(xy, tour):
    path = xy.gather(1, tour[..., None].expand(-1, -1, 2))
    return (path - path.roll(-1, 1)).norm(dim=-1).sum(1)


def main():
    policy = Courier().to(gpu)
    rival = copy.deepcopy(policy).eval().requires_grad_(False)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-4)
    for epoch in range(2):
        policy.train()
        for _ in range(2):
            xy = torch.rand(BATCH, STOPS, 2, device=gpu)
            with torch.no_grad():
                bar = length(xy, rival(xy, greedy=True)[0])
            tour, log_p = policy(xy, greedy=False)
            cost = length(xy, tour)
            loss = ((cost - bar) * log_p).mean()
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            print(
                f"{epoch}: cost {cost.mean().item():.2f}, rival {bar.mean().item():.2f}, {norm:.2f}"
            )
        rival.load_state_dict(policy.state_dict())


main()
