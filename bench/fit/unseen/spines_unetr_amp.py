"""Vertebrae in CT volumes by UNETR: a transformer over cubes of 16 voxels whose hidden states feed a convolutional decoder, DiceCE, fp16 with GradScaler, sliding windows at validation."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

ROI, PATCH, CLASSES = 96, 16, 14


class TransformerBlock(nn.Module):
    def __init__(self, dim, mlp_dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out_proj = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))
        self.heads = heads

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = (torch.einsum("bhxd,bhyd->bhxy", q, k) * (d // self.heads) ** -0.5).softmax(-1)
        x = x + self.out_proj(torch.einsum("bhxy,bhyd->bhxd", att, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ResBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1 = nn.Conv3d(i, o, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(o, o, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.InstanceNorm3d(o), nn.InstanceNorm3d(o)
        self.skip = nn.Sequential(nn.Conv3d(i, o, 1, bias=False), nn.InstanceNorm3d(o))

    def forward(self, x):
        y = F.leaky_relu(self.norm1(self.conv1(x)), 0.01)
        return F.leaky_relu(self.norm2(self.conv2(y)) + self.skip(x), 0.01)


def up(i, o):
    return nn.ConvTranspose3d(i, o, 2, stride=2, bias=False)


class UpBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up, self.block = up(i, o), ResBlock(2 * o, o)

    def forward(self, x, skip):
        return self.block(torch.cat((self.up(x), skip), dim=1))


class UNETR(nn.Module):
    def __init__(self, dim=576, mlp_dim=2304, heads=12, f=16):
        super().__init__()
        grid = ROI // PATCH
        self.grid, self.dim = grid, dim
        self.patch = nn.Conv3d(1, dim, PATCH, PATCH)
        self.position = nn.Parameter(torch.zeros(1, grid**3, dim))
        self.blocks = nn.ModuleList(TransformerBlock(dim, mlp_dim, heads) for _ in range(12))
        self.norm = nn.LayerNorm(dim)
        self.encoder1 = ResBlock(1, f)
        self.encoder2 = nn.Sequential(
            up(dim, 2 * f), up(2 * f, 2 * f), ResBlock(2 * f, 2 * f), up(2 * f, 2 * f)
        )
        self.encoder3 = nn.Sequential(up(dim, 4 * f), ResBlock(4 * f, 4 * f), up(4 * f, 4 * f))
        self.encoder4 = up(dim, 8 * f)
        self.decoder5, self.decoder4 = UpBlock(dim, 8 * f), UpBlock(8 * f, 4 * f)
        self.decoder3, self.decoder2 = UpBlock(4 * f, 2 * f), UpBlock(2 * f, f)
        self.out = nn.Conv3d(f, CLASSES, 1)

    def proj(self, x):
        return x.transpose(1, 2).unflatten(2, (self.grid,) * 3)

    def forward(self, volume):
        x = self.patch(volume).flatten(2).transpose(1, 2) + self.position
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        enc2, enc3, enc4 = (self.proj(hidden[i]) for i in (3, 6, 9))
        y = self.decoder5(self.proj(self.norm(x)), self.encoder4(enc4))
        y = self.decoder4(y, self.encoder3(enc3))
        y = self.decoder3(y, self.encoder2(enc2))
        return self.out(self.decoder2(y, self.encoder1(volume)))


def dice_ce(logits, label):
    one_hot = F.one_hot(label, CLASSES).permute(0, 4, 1, 2, 3).float()
    p = logits.float().softmax(1)
    axes = (2, 3, 4)
    dice = 1 - (2 * (p * one_hot).sum(axes) + 1e-5) / (p.sum(axes) + one_hot.sum(axes) + 1e-5)
    return dice.mean() + F.cross_entropy(logits.float(), label)


@torch.no_grad()
def sliding_window(model, volume, overlap=0.5):
    size, stride = volume.shape[-1], int(ROI * (1 - overlap))
    starts = range(0, size - ROI + 1, stride)
    total = torch.zeros(1, CLASSES, *volume.shape[2:], device="cuda")
    for z in starts:
        for y in starts:
            for x in starts:
                window = (..., slice(z, z + ROI), slice(y, y + ROI), slice(x, x + ROI))
                with torch.autocast("cuda", torch.float16):
                    total[window] += model(volume[window]).float()
    return total.argmax(1)


def main():
    max_iterations, eval_num, warm = 6, 3, 2
    model = UNETR().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (
            (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * s / max_iterations))
        ),
    )
    scaler = torch.amp.GradScaler("cuda")
    ct = torch.randn(1, 1, 144, 144, 144)
    truth = torch.randint(0, CLASSES, (1, 144, 144, 144))
    for step in range(1, max_iterations + 1):
        model.train()
        corners = torch.randint(0, 144 - ROI, (3, 3)).tolist()
        cut = [
            (..., slice(a, a + ROI), slice(b, b + ROI), slice(c, c + ROI)) for a, b, c in corners
        ]
        x = torch.cat([ct[w] for w in cut]).cuda()
        y = torch.cat([truth[w] for w in cut]).cuda()
        with torch.autocast("cuda", torch.float16):
            logit_map = model(x)
        loss = dice_ce(logit_map, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        print(f"Training ({step} / {max_iterations} Steps) (loss={loss.item():2.5f})")
        if step % eval_num == 0:
            model.eval()
            found = sliding_window(model, ct.cuda()).cpu()
            print(f"voxels right: {(found == truth).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
