"""Maps of dungeons by discrete diffusion (D3PM): tiles change to like tiles, axial attention, the hybrid loss."""

import torch
import torch.nn.functional as F
from torch import nn

TILES, SIDE, TIMES = 64, 64, 200


def transitions():
    """Q_t, and the products of all up to t: a discretized Gaussian over tiles that are sorted by kind."""
    beta = torch.linspace(0.02, 1.0, TIMES, dtype=torch.float64) / TILES
    i = torch.arange(TILES, dtype=torch.float64)
    distance = (i[:, None] - i[None, :]).square() * 4 / (TILES - 1) ** 2
    steps = (-distance / beta.view(-1, 1, 1)).softmax(-1)
    steps = (steps + steps.mT) / 2
    steps.diagonal(dim1=1, dim2=2).add_(1 - steps.sum(-1))
    products = [steps[0]]
    for q in steps[1:]:
        products.append(products[-1] @ q)
    return steps.float(), torch.stack(products).float()


class AxialBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width)
        )
        self.shift = nn.Linear(width, 6 * width)

    def along(self, x, i):
        b, h, w, c = x.shape
        q, k, v = self.qkv[i](x).view(b * h, w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out[i](y.reshape(b, h, w, c))

    def forward(self, x, time):
        parts = self.shift(time)[:, None, None].chunk(6, -1)
        x = x + self.along(self.norms[0](x) * (1 + parts[0]) + parts[1], 0)
        turned = (self.norms[1](x) * (1 + parts[2]) + parts[3]).transpose(1, 2)
        x = x + self.along(turned, 1).transpose(1, 2)
        return x + self.feed(self.norms[2](x) * (1 + parts[4]) + parts[5])


class Denoiser(nn.Module):
    def __init__(self, width=192, depth=5, heads=6):
        super().__init__()
        self.tile = nn.Embedding(TILES, width)
        self.row, self.column = (nn.Parameter(0.02 * torch.randn(SIDE, width)) for _ in range(2))
        self.time = nn.Sequential(nn.Embedding(TIMES, width), nn.Linear(width, width), nn.SiLU())
        self.blocks = nn.ModuleList(AxialBlock(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, TILES))

    def forward(self, x, t):
        h = self.tile(x) + self.row[:, None] + self.column[None]
        time = self.time(t)
        for block in self.blocks:
            h = block(h, time)
        return self.head(h) + F.one_hot(x, TILES)


class D3PM(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        steps, products = transitions()
        self.register_buffer("steps", steps)
        self.register_buffer("products", products)

    def noised(self, x, t):
        p = self.products[t.view(-1, 1, 1), x]
        gumbel = -torch.log(-torch.log(torch.rand_like(p).clamp(1e-9, 1 - 1e-7)))
        return (p.clamp(min=1e-20).log() + gumbel).argmax(-1)

    def posterior(self, start, x, t):
        """log q(x_{t-1} | x_t, x_0), where `start` is a distribution over x_0."""
        back = self.steps[t].mT[torch.arange(len(t), device=t.device).view(-1, 1, 1), x]
        before = torch.einsum("bhwk,bkl->bhwl", start, self.products[(t - 1).clamp(min=0)])
        return torch.log(back + 1e-6) + torch.log(before + 1e-6)

    def forward(self, x0):
        t = torch.randint(1, TIMES, (len(x0),), device=x0.device)
        xt = self.noised(x0, t)
        logits = self.net(xt, t)
        true = self.posterior(F.one_hot(x0, TILES).float(), xt, t).log_softmax(-1)
        guess = self.posterior(logits.softmax(-1), xt, t).log_softmax(-1)
        divergence = (true.exp() * (true - guess)).sum(-1).mean()
        direct = F.cross_entropy(logits.flatten(0, 2), x0.flatten())
        return divergence + 0.01 * direct, direct


def main():
    torch.manual_seed(11)
    model = D3PM().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(6):
        rooms = torch.randint(TILES, (16, SIDE // 8, SIDE // 8), device="cuda")
        maps = rooms.repeat_interleave(8, 1).repeat_interleave(8, 2)
        loss, direct = model(maps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"{step} hybrid {loss.item():.4f} cross entropy {direct.item():.4f}")


main()
