"""
Diffusion policy for a robot's gripper: noise on a chunk of 16 actions, taken away by a 1-D U-Net that sees two
cameras (ResNet-18 with GroupNorm, spatial softmax) and the joints. bf16 autocast, EMA as in the original.
"""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

cfg = dict(
    batch=112, obs_steps=2, horizon=16, action_dim=10, joints=9, cameras=("front", "wrist"), crop=96,
    diffusion_steps=100, dims=(256, 512, 1024), steps=14, warmup=4, lr=1e-4,
)  # fmt: skip


class SpatialSoftmax(nn.Module):
    def __init__(self, channels, points=32):
        super().__init__()
        self.reduce = nn.Conv2d(channels, points, 1)

    def forward(self, x):
        x = self.reduce(x)
        n, k, h, w = x.shape
        p = x.flatten(2).float().softmax(-1).view(n, k, h, w)
        ys, xs = (
            torch.linspace(-1, 1, h, device=x.device),
            torch.linspace(-1, 1, w, device=x.device),
        )
        return torch.cat([(p.sum(3) * ys).sum(-1), (p.sum(2) * xs).sum(-1)], 1)


def camera_encoder():
    net = torchvision.models.resnet18(norm_layer=lambda c: nn.GroupNorm(c // 16, c))
    return nn.Sequential(*list(net.children())[:-2], SpatialSoftmax(512), nn.Linear(64, 128))


class ObsEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleDict({c: camera_encoder() for c in cfg["cameras"]})
        self.out_dim = cfg["obs_steps"] * (128 * len(cfg["cameras"]) + cfg["joints"])

    def forward(self, obs):
        b, t = obs["joints"].shape[:2]
        parts = [obs["joints"]]
        for name, enc in self.encoders.items():
            parts.append(enc(obs[name].flatten(0, 1)).view(b, t, -1))
        return torch.cat(parts, -1).flatten(1)


def conv_block(cin, cout, k=5):
    return nn.Sequential(nn.Conv1d(cin, cout, k, padding=k // 2), nn.GroupNorm(8, cout), nn.Mish())


class CondResBlock(nn.Module):
    def __init__(self, cin, cout, cond):
        super().__init__()
        self.a, self.b = conv_block(cin, cout), conv_block(cout, cout)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * cout))
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, cond):
        scale, shift = self.film(cond)[..., None].chunk(2, 1)
        return self.b(self.a(x) * (1 + scale) + shift) + self.skip(x)


class StepEmbedding(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.Mish(), nn.Linear(4 * dim, dim))

    def forward(self, k):
        freq = torch.exp(
            -math.log(1e4) * torch.arange(self.dim // 2, device=k.device) / (self.dim // 2 - 1)
        )
        angle = k[:, None] * freq
        return self.mlp(torch.cat([angle.sin(), angle.cos()], -1))


class ConditionalUnet1D(nn.Module):
    def __init__(self, action_dim, obs_dim, dims):
        super().__init__()
        self.step = StepEmbedding()
        cond = obs_dim + 128
        pairs = list(zip((action_dim,) + dims[:-1], dims))
        self.downs = nn.ModuleList(
            nn.ModuleList([
                CondResBlock(a, b, cond),
                CondResBlock(b, b, cond),
                nn.Conv1d(b, b, 3, 2, 1) if i < len(pairs) - 1 else nn.Identity(),
            ])
            for i, (a, b) in enumerate(pairs)
        )  # fmt: skip
        self.mid = nn.ModuleList([CondResBlock(dims[-1], dims[-1], cond) for _ in range(2)])
        self.ups = nn.ModuleList(
            nn.ModuleList([
                CondResBlock(2 * b, a, cond),
                CondResBlock(a, a, cond),
                nn.ConvTranspose1d(a, a, 4, 2, 1),
            ])
            for a, b in reversed(pairs[1:])
        )  # fmt: skip
        self.final = nn.Sequential(conv_block(dims[0], dims[0]), nn.Conv1d(dims[0], action_dim, 1))

    def forward(self, noisy, k, obs):
        cond = torch.cat([self.step(k), obs], -1)
        x, skips = noisy.transpose(1, 2), []
        for r1, r2, down in self.downs:
            x = r2(r1(x, cond), cond)
            skips.append(x)
            x = down(x)
        for block in self.mid:
            x = block(x, cond)
        for r1, r2, up in self.ups:
            x = up(r2(r1(torch.cat([x, skips.pop()], 1), cond), cond))
        return self.final(x).transpose(1, 2)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.obs_encoder = ObsEncoder()
        self.unet = ConditionalUnet1D(cfg["action_dim"], self.obs_encoder.out_dim, cfg["dims"])
        t = torch.arange(cfg["diffusion_steps"] + 1) / cfg["diffusion_steps"]
        bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
        self.register_buffer("alpha_bar", (1 - betas).cumprod(0))

    def compute_loss(self, batch):
        action = batch["action"]
        noise = torch.randn_like(action)
        k = torch.randint(0, cfg["diffusion_steps"], (len(action),), device=action.device)
        a = self.alpha_bar[k][:, None, None]
        noisy = a.sqrt() * action + (1 - a).sqrt() * noise
        guess = self.unet(noisy, k, self.obs_encoder(batch["obs"]))
        return F.mse_loss(guess.float(), noise)


@torch.no_grad()
def ema_step(ema, model, n, power=0.75):
    decay = max(0.0, 1 - (1 + n) ** -power)
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


def demonstrations():
    b, t, s = cfg["batch"], cfg["obs_steps"], cfg["crop"]
    stored = torch.randint(0, 256, (64, 3, 112, 112), dtype=torch.uint8)
    while True:
        obs = {"joints": torch.randn(b, t, cfg["joints"]).cuda()}
        for c in cfg["cameras"]:
            y, x = torch.randint(0, 112 - s, (2,)).tolist()
            pick = torch.randint(0, 64, (b, t))
            obs[c] = stored[pick][..., y : y + s, x : x + s].cuda().float() / 127.5 - 1
        action = torch.randn(b, cfg["horizon"], cfg["action_dim"]).cumsum(1).tanh().cuda()
        yield {"obs": obs, "action": action}


torch.manual_seed(42)
policy = Policy().cuda()
ema_policy = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(
    policy.parameters(), lr=cfg["lr"], betas=(0.95, 0.999), weight_decay=1e-6
)


def cosine(n):
    if n < cfg["warmup"]:
        return (n + 1) / cfg["warmup"]
    return 0.5 * (1 + math.cos(math.pi * (n - cfg["warmup"]) / (cfg["steps"] - cfg["warmup"])))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)
data = demonstrations()
for n in range(cfg["steps"]):
    batch = next(data)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = policy.compute_loss(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    ema_step(ema_policy, policy, n)
    if n % 5 == 0:
        print({"step": n, "loss": loss.item(), "lr": scheduler.get_last_lr()[0]})
