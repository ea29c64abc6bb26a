"""Heat in buried cisterns by a DeepONet: from conductivity to temperature anywhere, anytime.

The branch is a small residual CNN over the map, the trunk a modified MLP (two gates) over Fourier
features of the points. Adam, exponential decay, relative L2 on held-out maps, fp32.
"""

import math
import os
import tempfile
import time

import torch
from torch import nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))

torch.manual_seed(1234)
device = torch.device("cuda")

N_MAPS = 32  # functions in a batch
N_POINTS = 6144  # points for each of them
BASIS = 384
HIDDEN = 512
DEPTH = 6
EVERY = 4  # evaluation


class Branch(nn.Module):
    def __init__(self, channels=(32, 64, 128, 256)):
        super().__init__()
        self.stem = nn.Conv2d(1, channels[0], 5, padding=2)
        self.downs, self.blocks = nn.ModuleList(), nn.ModuleList()
        for a, b in zip(channels[:-1], channels[1:]):
            self.blocks.append(
                nn.Sequential(
                    nn.GroupNorm(8, a),
                    nn.SiLU(),
                    nn.Conv2d(a, a, 3, padding=1),
                    nn.GroupNorm(8, a),
                    nn.SiLU(),
                    nn.Conv2d(a, a, 3, padding=1),
                )
            )
            self.downs.append(nn.Conv2d(a, b, 3, stride=2, padding=1))
        self.out = nn.Sequential(
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * channels[-1], HIDDEN),
            nn.SiLU(),
            nn.Linear(HIDDEN, BASIS),
        )

    def forward(self, k):
        h = self.stem(k)
        for block, down in zip(self.blocks, self.downs):
            h = down(h + block(h))
        return self.out(h)


class Trunk(nn.Module):
    def __init__(self, features=64, scale=4.0):
        super().__init__()
        self.register_buffer("B", torch.randn(3, features) * scale)
        d = 2 * features
        self.gate_u, self.gate_v = nn.Linear(d, HIDDEN), nn.Linear(d, HIDDEN)
        self.layers = nn.ModuleList(
            nn.Linear(d if i == 0 else HIDDEN, HIDDEN) for i in range(DEPTH)
        )
        self.last = nn.Linear(HIDDEN, BASIS)

    def forward(self, xyt):
        phase = 2 * math.pi * xyt @ self.B
        x = torch.cat([phase.sin(), phase.cos()], dim=-1)
        u, v = torch.tanh(self.gate_u(x)), torch.tanh(self.gate_v(x))
        for layer in self.layers:
            z = torch.tanh(layer(x))
            x = z * u + (1 - z) * v
        return self.last(x)


class DeepONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch, self.trunk = Branch(), Trunk()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, k, xyt):
        b, t = self.branch(k), self.trunk(xyt)
        return torch.einsum("nc,npc->np", b, t) / math.sqrt(BASIS) + self.bias


# conductivity: smooth random fields by filtering noise in Fourier space
freq = torch.fft.fftfreq(128, device=device)
spectrum = 1 / (1e-4 + freq[:, None] ** 2 + freq[None, :] ** 2)


def sample(n):
    noise = torch.fft.fft2(torch.randn(n, 128, 128, device=device))
    k = torch.fft.ifft2(noise * spectrum).real
    k = (k - k.mean((1, 2), keepdim=True)) / k.std((1, 2), keepdim=True)
    xyt = torch.rand(n, N_POINTS, 3, device=device)
    here = nn.functional.grid_sample(
        k[:, None], xyt[:, None, :, :2] * 2 - 1, align_corners=False, mode="bilinear"
    )
    decay = torch.exp(-xyt[..., 2] * torch.exp(here[:, 0, 0]))
    truth = decay * torch.sin(math.pi * xyt[..., 0]) * torch.sin(math.pi * xyt[..., 1])
    return k[:, None], xyt, truth


net = DeepONet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9995)
print(sum(p.numel() for p in net.parameters()), "parameters")

start = time.time()
best = float("inf")
with tempfile.TemporaryDirectory() as folder:
    for step in range(1, STEPS + 1):
        k, xyt, truth = sample(N_MAPS)
        guess = net(k, xyt)
        loss = ((guess - truth).norm(dim=1) / truth.norm(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        print(f"step {step} rel L2 {loss.item():.4f} ({time.time() - start:.1f} s)")
        if step % EVERY == 0:
            net.eval()
            with torch.no_grad():
                k, xyt, truth = sample(8)
                error = ((net(k, xyt) - truth).norm(dim=1) / truth.norm(dim=1)).mean().item()
            net.train()
            print("  held out", error)
            if error < best:
                best = error
                torch.save(net.state_dict(), os.path.join(folder, "best.pt"))
