"""Parts of mammoths on scanned surfaces: DiffusionNet (learned heat diffusion in the spectral basis, tangent gradients by sparse products)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

ROWS, COLS, BASIS, PARTS = 180, 240, 128, 12
device = "cuda"


def torus_operators():
    """Laplacian eigenfunctions and finite-difference gradients on a closed grid of vertices."""
    n = ROWS * COLS
    u = torch.arange(ROWS, device=device).repeat_interleave(COLS) * (2 * math.pi / ROWS)
    v = torch.arange(COLS, device=device).repeat(ROWS) * (2 * math.pi / COLS)
    waves = sorted((a * a + b * b, a, b) for a in range(9) for b in range(9))[: BASIS // 4]
    vectors, values = [], []
    for value, a, b in waves:
        for f in (torch.sin, torch.cos):
            for g in (torch.sin, torch.cos):
                vectors.append(f(a * u + 0.3) * g(b * v + 0.7) * (2 / math.sqrt(n)))
                values.append(float(value))
    index = torch.arange(n, device=device)
    row, col = index // COLS, index % COLS
    gradients = []
    for dr, dc, h in ((1, 0, 4 * math.pi / ROWS), (0, 1, 4 * math.pi / COLS)):
        ahead = (row + dr) % ROWS * COLS + (col + dc) % COLS
        behind = (row - dr) % ROWS * COLS + (col - dc) % COLS
        places = torch.stack([index.repeat(2), torch.cat([ahead, behind])])
        weights = torch.cat([torch.full((n,), 1 / h), torch.full((n,), -1 / h)]).to(device)
        gradients.append(torch.sparse_coo_tensor(places, weights, (n, n)).coalesce())
    return torch.stack(vectors, 1), torch.tensor(values, device=device), *gradients, u, v


class Diffusion(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Parameter(torch.full((width,), 0.01))

    def forward(self, x, vectors, values):
        spectrum = vectors.t() @ x
        decay = torch.exp(-values[:, None] * self.time.clamp(min=1e-8))
        return vectors @ (decay * spectrum)


class Block(nn.Module):
    def __init__(self, width, dropout=0.5):
        super().__init__()
        self.diffuse = Diffusion(width)
        self.real = nn.Linear(width, width, bias=False)
        self.imag = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(3 * width, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x, vectors, values, grad_x, grad_y):
        spread = self.diffuse(x, vectors, values)
        gx, gy = torch.sparse.mm(grad_x, spread), torch.sparse.mm(grad_y, spread)
        bx = self.real(gx) - self.imag(gy)
        by = self.real(gy) + self.imag(gx)
        features = torch.tanh(gx * bx + gy * by)
        return x + self.mlp(torch.cat([x, spread, features], -1))


class DiffusionNet(nn.Module):
    def __init__(self, width=384, blocks=6):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, PARTS)

    def forward(self, points, operators):
        x = self.first(points)
        for block in self.blocks:
            x = block(x, *operators)
        return self.last(x)


def scan(u, v, seed):
    """A bumpy torus with normals, turned at random; parts are bands around it."""
    g = torch.Generator(device=device).manual_seed(seed)
    a, b, c = (torch.rand(3, generator=g, device=device) * 6).round()
    radius = 0.4 + 0.05 * torch.sin(a * u) * torch.cos(b * v + c)
    ring = 1 + radius * torch.cos(v)
    position = torch.stack([ring * torch.cos(u), ring * torch.sin(u), radius * torch.sin(v)], 1)
    normal = torch.stack(
        [torch.cos(v) * torch.cos(u), torch.cos(v) * torch.sin(u), torch.sin(v)], 1
    )
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=g, device=device))
    label = (u / (2 * math.pi) * PARTS).long().clamp(max=PARTS - 1)
    return torch.cat([position @ turn, normal @ turn], 1), label


def main():
    torch.manual_seed(4)
    *operators, u, v = torus_operators()
    net = DiffusionNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)
    for step in range(5):
        points, label = scan(u, v, step)
        points = points + 0.005 * torch.randn_like(points)
        scores = net(points, operators)
        loss = F.cross_entropy(scores, label, label_smoothing=0.2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        right = (scores.argmax(1) == label).float().mean()
        print(f"step {step} loss {loss.item():.4f} accuracy {right.item():.3f}")


if __name__ == "__main__":
    main()
