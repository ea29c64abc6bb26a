"""One-step wallpaper generator out of a diffusion teacher by distribution matching distillation (DMD2): a frozen teacher,
a fake-score network that follows the generator (two updates for each of the generator's) with a GAN head on its middle
features, bf16 autocast, EMA of the generator. All three are U-ViTs on 32x32 latents."""

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn

DIM, DEPTH, HEADS, PATCH, CHANNELS = 768, 13, 12, 2, 4


def timestep_embedding(t, dim=256):
    freq = torch.exp(-9.21 * torch.arange(dim // 2, device=t.device) / (dim // 2))
    angle = 1000 * t[:, None] * freq
    return torch.cat([angle.cos(), angle.sin()], 1)


class Block(nn.Module):
    def __init__(self, skip=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.skip = nn.Linear(2 * DIM, DIM) if skip else None

    def forward(self, x, skip=None):
        if self.skip is not None:
            x = self.skip(torch.cat([x, skip], -1))
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class UViT(nn.Module):
    def __init__(self, size=32, classes=100):
        super().__init__()
        self.patch = nn.Conv2d(CHANNELS, DIM, PATCH, PATCH)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // PATCH) ** 2 + 2, DIM))
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.label = nn.Embedding(classes, DIM)
        self.down = nn.ModuleList(Block() for _ in range(DEPTH // 2))
        self.mid = Block()
        self.up = nn.ModuleList(Block(skip=True) for _ in range(DEPTH // 2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, y, features=False):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = (
            torch.cat([self.time(timestep_embedding(t))[:, None], self.label(y)[:, None], h], 1)
            + self.pos
        )
        skips = []
        for block in self.down:
            h = block(h)
            skips.append(h)
        h = mid = self.mid(h)
        for block in self.up:
            h = block(h, skips.pop())
        out = self.head(self.norm(h))[:, 2:].mT
        out = F.pixel_shuffle(
            out.reshape(len(x), -1, x.size(2) // PATCH, x.size(3) // PATCH), PATCH
        )
        return (out.float(), mid) if features else out.float()


def diffuse(x, t):
    eps = torch.randn_like(x)
    a = torch.cos(t * torch.pi / 2).view(-1, 1, 1, 1)
    s = torch.sin(t * torch.pi / 2).view(-1, 1, 1, 1)
    return a * x + s * eps, a, s


class Distiller:
    def __init__(self, device):
        with torch.device(device):
            self.teacher = UViT().eval().requires_grad_(False)
            self.fake, self.gen = UViT(), UViT()
            self.gan = nn.Sequential(
                nn.LayerNorm(DIM), nn.Linear(DIM, 256), nn.SiLU(), nn.Linear(256, 1)
            )
        self.fake.load_state_dict(self.teacher.state_dict())
        self.gen.load_state_dict(self.teacher.state_dict())
        self.ema = copy.deepcopy(self.gen).requires_grad_(False)
        self.opt_g = torch.optim.AdamW(self.gen.parameters(), lr=1e-5)
        self.opt_f = torch.optim.AdamW(
            itertools.chain(self.fake.parameters(), self.gan.parameters()), lr=1e-5
        )

    def sample(self, z, y):
        return self.gen(z, torch.full((len(z),), 0.99, device=z.device), y)

    def critic(self, x, t, y):
        noisy, _, _ = diffuse(x, t)
        pred, mid = self.fake(noisy, t, y, features=True)
        return pred, self.gan(mid.mean(1)).float()

    def fake_loss(self, real, z, y):
        with torch.no_grad():
            x = self.sample(z, y)
        t = torch.rand(len(x), device=x.device) * 0.96 + 0.02
        pred, score = self.critic(x, t, y)
        _, real_score = self.critic(real, t, y)
        gan = F.softplus(score).mean() + F.softplus(-real_score).mean()
        return F.mse_loss(pred, x) + 0.01 * gan

    def gen_loss(self, z, y):
        x = self.sample(z, y)
        t = torch.rand(len(x), device=x.device) * 0.96 + 0.02
        with torch.no_grad():
            noisy, _, _ = diffuse(x, t)
            real_x0, fake_x0 = self.teacher(noisy, t, y), self.fake(noisy, t, y)
            weight = (x - real_x0).abs().mean((1, 2, 3), keepdim=True)
            direction = (fake_x0 - real_x0) / weight.clamp(min=1e-4)
        match = 0.5 * F.mse_loss(x, (x - direction).detach())
        return match + 0.003 * F.softplus(-self.critic(x, t, y)[1]).mean()


def main(batch=24, steps=3, device="cuda"):
    torch.manual_seed(2)
    s = Distiller(device)
    for step in range(steps):
        for _ in range(2):
            y = torch.randint(100, (batch,), device=device)
            real, z = (torch.randn(batch, CHANNELS, 32, 32, device=device) for _ in range(2))
            with torch.autocast("cuda", torch.bfloat16):
                loss_f = s.fake_loss(real, z, y)
            s.opt_f.zero_grad()
            loss_f.backward()
            s.opt_f.step()
        with torch.autocast("cuda", torch.bfloat16):
            loss_g = s.gen_loss(torch.randn_like(real), y)
        s.opt_g.zero_grad()
        loss_g.backward()
        s.opt_g.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(s.ema.parameters()), list(s.gen.parameters()), 0.001)
        print(f"step {step} fake {loss_f.item():.4f} generator {loss_g.item():.4f}")


if __name__ == "__main__":
    main()
