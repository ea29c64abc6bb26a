"""Stages of sleep from EEG: stacked Legendre memory units, stepped through time by hand. All tensors are (time, batch, channels)."""

import torch
from torch import nn, Tensor
from torch.nn import functional as F


def legendre(order: int, theta: float):
    """Delay of theta steps as a linear system, zero-order hold."""
    q = torch.arange(order, dtype=torch.float64)
    r = (2 * q + 1)[:, None] / theta
    i, j = torch.meshgrid(q, q, indexing="ij")
    a = torch.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * r
    b = (-1.0) ** q[:, None] * r
    both = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    both[:order, :order], both[:order, order:] = a, b
    both = torch.linalg.matrix_exp(both)
    return both[:order, :order].float(), both[:order, order].float()


class LMU(nn.Module):
    def __init__(self, inputs: int, hidden: int, order: int, theta: float):
        super().__init__()
        self.hidden, self.order = hidden, order
        a, b = legendre(order, theta)
        self.register_buffer("at", a.t().contiguous())
        self.register_buffer("b", b)
        self.write_x = nn.Linear(inputs, 1)
        self.write_h = nn.Parameter(torch.zeros(hidden, 1))
        self.write_m = nn.Parameter(torch.zeros(order, 1))
        self.from_x = nn.Linear(inputs, hidden)
        self.from_h = nn.Parameter(nn.init.orthogonal_(torch.empty(hidden, hidden)))
        self.from_m = nn.Parameter(nn.init.xavier_normal_(torch.empty(order, hidden)))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], self.hidden)
        m = x.new_zeros(x.shape[1], self.order)
        outputs = []
        for wx, ux in zip(self.from_x(x).unbind(0), self.write_x(x).unbind(0)):
            u = ux + h @ self.write_h + m @ self.write_m
            m = m @ self.at + u * self.b
            h = torch.tanh(torch.addmm(wx, h, self.from_h) + m @ self.from_m)
            outputs.append(h)
        return torch.stack(outputs)


class SleepNet(nn.Module):
    def __init__(self, channels=6, hidden=512, order=256, layers=3, stages=5, every=20):
        super().__init__()
        self.every = every
        self.stem = nn.Linear(channels, hidden)
        self.layers = nn.ModuleList(
            LMU(hidden, hidden, order, theta=120.0 * 2**k) for k in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, stages)

    def forward(self, x):
        x = self.stem(x)
        for lmu, norm in zip(self.layers, self.norms):
            x = x + lmu(norm(x))
        T, B, C = x.shape
        return self.head(x.view(T // self.every, self.every, B, C).mean(1))


def night(T, B, every, channels=6):
    stage = torch.randint(0, 5, (T // every, B)).cuda()
    rhythm = torch.tensor([1.1, 0.8, 0.5, 0.25, 0.65], device="cuda")[stage].repeat_interleave(
        every, 0
    )
    phase = rhythm.cumsum(0)[..., None] + torch.rand(channels, device="cuda") * 6
    return phase.sin() + 0.3 * torch.randn(T, B, channels, device="cuda"), stage


def main():
    torch.manual_seed(30)
    T, B = 400, 512
    net = SleepNet().cuda()
    opt = torch.optim.NAdam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=4, gamma=0.7)
    class_weight = torch.tensor([1.0, 2.5, 0.8, 1.2, 1.1]).cuda()
    for it in range(10):
        eeg, stage = night(T, B, net.every)
        logits = net(eeg)
        loss = F.cross_entropy(logits.flatten(0, 1), stage.flatten(), class_weight)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        hit = (logits.argmax(-1) == stage).float().mean()
        print(f"[{it}] loss={loss.item():.4f} acc={hit.item():.3f} |g|={norm.item():.2f}")


if __name__ == "__main__":
    main()
