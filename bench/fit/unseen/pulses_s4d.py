"""Heartbeats by a diagonal state space model (S4D): kernels of the sequence's length, convolution by FFT, complex parameters."""

import math

import torch
import torch.nn as nn


class S4DKernel(nn.Module):
    def __init__(self, width, n=64, dt_min=0.001, dt_max=0.1):
        super().__init__()
        log_dt = torch.rand(width) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)
        self.log_dt = nn.Parameter(log_dt)
        self.C = nn.Parameter(torch.randn(width, n // 2, 2) * 0.5**0.5)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(width, n // 2)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(n // 2).float().repeat(width, 1))

    def forward(self, length):
        dt = self.log_dt.exp()
        C = torch.view_as_complex(self.C)
        A = -self.log_A_real.exp() + 1j * self.A_imag
        dtA = A * dt[:, None]
        K = dtA[..., None] * torch.arange(length, device=A.device)
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(K)).real


class S4D(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.kernel = S4DKernel(width)
        self.D = nn.Parameter(torch.randn(width))
        self.act, self.drop = nn.GELU(), nn.Dropout1d(dropout)
        self.out = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=1))

    def forward(self, u):
        length = u.shape[-1]
        k = self.kernel(length)
        y = torch.fft.irfft(
            torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(k, n=2 * length), n=2 * length
        )
        y = y[..., :length] + u * self.D[:, None]
        return self.out(self.drop(self.act(y)))


class Model(nn.Module):
    def __init__(self, leads=12, classes=27, width=128, layers=4):
        super().__init__()
        self.encoder = nn.Linear(leads, width)
        self.layers = nn.ModuleList([S4D(width) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.decoder = nn.Linear(width, classes)

    def forward(self, x):
        x = self.encoder(x).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms):
            x = norm((x + layer(x)).transpose(1, 2)).transpose(1, 2)
        return self.decoder(x.mean(-1))


def setup_optimizer(model, lr):
    slow = [p for n, p in model.named_parameters() if "kernel" in n]
    rest = [p for n, p in model.named_parameters() if "kernel" not in n]
    return torch.optim.AdamW(
        [{"params": slow, "lr": lr / 10, "weight_decay": 0.0}, {"params": rest}],
        lr=lr,
        weight_decay=0.01,
    )


def main(steps=10, batch=32, length=4096):
    model = Model().cuda()
    opt = setup_optimizer(model, 4e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    for step in range(steps):
        x, y = torch.randn(batch, length, 12).cuda(), (torch.rand(batch, 27) < 0.1).float().cuda()
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
