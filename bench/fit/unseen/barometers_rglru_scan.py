"""Pressure from a net of barometers: gated linear recurrences (RG-LRU blocks) run by a doubling scan, next-value quantiles, fp32."""

import os
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))
SENSORS, LENGTH, WIDTH, DEPTH, BATCH = 40, 2048, 512, 6, 16
QUANTILES = (0.1, 0.5, 0.9)


def scan(a, b):
    """h[t] = a[t] * h[t-1] + b[t] along dim 1, in log2(T) passes."""
    shift, length = 1, a.shape[1]
    while shift < length:
        b_before = F.pad(b[:, :-shift], (0, 0, shift, 0))
        a_before = F.pad(a[:, :-shift], (0, 0, shift, 0), value=1.0)
        b = b + a * b_before
        a = a * a_before
        shift *= 2
    return b


class RGLRU(nn.Module):
    def __init__(self, dim, c=8.0):
        super().__init__()
        self.c = c
        self.recurrence_gate = nn.Linear(dim, dim)
        self.input_gate = nn.Linear(dim, dim)
        decay = torch.empty(dim).uniform_(0.9, 0.999)
        self.log_lambda = nn.Parameter(torch.log(torch.expm1(-torch.log(decay) / c)))

    def forward(self, x):
        r = torch.sigmoid(self.recurrence_gate(x))
        i = torch.sigmoid(self.input_gate(x))
        log_a = -self.c * r * F.softplus(self.log_lambda)
        a = torch.exp(log_a)
        gain = torch.sqrt(-torch.expm1(2 * log_a) + 1e-6)
        return scan(a, gain * i * x)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.gate, self.inner = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.conv = nn.Conv1d(dim, dim, 4, groups=dim)
        self.rec = RGLRU(dim)
        self.out = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        h = self.norm1(x)
        u = F.pad(self.inner(h).transpose(1, 2), (3, 0))
        u = self.rec(self.conv(u).transpose(1, 2))
        x = x + self.out(u * F.gelu(self.gate(h)))
        left, right = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.gelu(left) * right)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(SENSORS, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SENSORS * len(QUANTILES))

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).unflatten(-1, (SENSORS, len(QUANTILES)))


def weather(n):
    t = torch.arange(LENGTH + 1).view(1, -1, 1) / 144
    phase, pace = torch.rand(n, 1, SENSORS) * 6.28, 0.2 + torch.rand(n, 1, SENSORS)
    return torch.sin(t * pace + phase) + 0.1 * torch.randn(n, LENGTH + 1, SENSORS)


def pinball(pred, target):
    q = pred.new_tensor(QUANTILES)
    err = target.unsqueeze(-1) - pred
    return torch.maximum(q * err, (q - 1) * err).mean()


def train():
    torch.manual_seed(17)
    net = Forecaster().cuda()
    slow = [p for n, p in net.named_parameters() if "log_lambda" in n]
    rest = [p for n, p in net.named_parameters() if "log_lambda" not in n]
    opt = torch.optim.AdamW(
        [{"params": slow, "lr": 2e-4, "weight_decay": 0.0}, {"params": rest, "lr": 1e-3}]
    )
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=[2e-4, 1e-3], total_steps=5000)
    archive = weather(64).pin_memory()
    recent = deque(maxlen=20)
    for step in range(STEPS):
        pick = torch.randint(0, len(archive), (BATCH,))
        series = archive[pick].cuda(non_blocking=True)
        loss = pinball(net(series[:, :-1]), series[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        sched.step()
        recent.append(loss.item())
        print(f"step {step:4d} loss {recent[-1]:.4f} mean20 {sum(recent) / len(recent):.4f}")


if __name__ == "__main__":
    train()
