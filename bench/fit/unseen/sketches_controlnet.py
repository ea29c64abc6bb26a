"""Pictures after sketches by a ControlNet: a frozen bf16 U-Net with cross attention, a trained copy of its encoder with zero convolutions, prompts dropped, two batches for a step."""

import copy
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn as nn
import torch.nn.functional as F


def zero_module(module):
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


class ResnetBlock(nn.Module):
    def __init__(self, i, o, temb=512):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.time_emb_proj = nn.Linear(temb, o)
        self.norm2, self.conv2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.shortcut = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, temb, text):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time_emb_proj(F.silu(temb))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Transformer2D(nn.Module):
    def __init__(self, c, text_dim=512, heads=8):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, c), heads
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(c) for _ in range(3))
        self.self_q, self.self_k, self.self_v = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.text_q = nn.Linear(c, c, bias=False)
        self.text_k, self.text_v = (nn.Linear(text_dim, c, bias=False) for _ in range(2))
        self.self_o, self.text_o = nn.Linear(c, c), nn.Linear(c, c)
        self.ff_in, self.ff_out = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x, temb, text):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        n = self.norm1(y)
        y = y + self.self_o(self.attend(self.self_q(n), self.self_k(n), self.self_v(n)))
        n = self.norm2(y)
        y = y + self.text_o(self.attend(self.text_q(n), self.text_k(text), self.text_v(text)))
        value, gate = self.ff_in(self.norm3(y)).chunk(2, -1)
        y = y + self.ff_out(value * F.gelu(gate))
        return x + y.transpose(1, 2).view(b, c, h, w)


class Down(nn.Conv2d):
    def __init__(self, c):
        super().__init__(c, c, 3, stride=2, padding=1)

    def forward(self, x, temb, text):
        return super().forward(x)


def time_embedding(t, dim=192):
    freqs = torch.exp(-math.log(10_000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    angles = t[:, None].float() * freqs
    return torch.cat([angles.cos(), angles.sin()], -1)


class Encoder(nn.Module):
    def __init__(self, c=192, mult=(1, 2, 3)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(192, 512), nn.SiLU(), nn.Linear(512, 512))
        self.conv_in = nn.Conv2d(4, c, 3, padding=1)
        self.blocks, self.widths, i = nn.ModuleList(), [c], c
        for level, m in enumerate(mult):
            for _ in range(2):
                self.blocks.append(nn.ModuleList([ResnetBlock(i, c * m), Transformer2D(c * m)]))
                i = c * m
                self.widths.append(i)
            if level < len(mult) - 1:
                self.blocks.append(nn.ModuleList([Down(i)]))
                self.widths.append(i)
        self.mid = nn.ModuleList([ResnetBlock(i, i), Transformer2D(i), ResnetBlock(i, i)])

    def forward(self, x, t, text, hint=None):
        temb = self.time(time_embedding(t).to(x.dtype))
        x = self.conv_in(x)
        if hint is not None:
            x = x + hint
        skips = [x]
        for block in self.blocks:
            for layer in block:
                x = layer(x, temb, text)
            skips.append(x)
        for layer in self.mid:
            x = layer(x, temb, text)
        return x, skips, temb


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.up, self.grow, i = nn.ModuleList(), nn.ModuleList(), self.encoder.widths[-1]
        for k, w in enumerate(reversed(self.encoder.widths)):
            self.up.append(ResnetBlock(i + w, w))
            self.grow.append(nn.Upsample(scale_factor=2) if k in (2, 5) else nn.Identity())
            i = w
        self.out = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, 4, 3, padding=1))

    def forward(self, x, t, text, down_residuals, mid_residual):
        x, skips, temb = self.encoder(x, t, text)
        x = x + mid_residual
        for block, grow in zip(self.up, self.grow):
            x = grow(block(torch.cat([x, skips.pop() + down_residuals.pop()], 1), temb, text))
        return self.out(x)


class ControlNet(nn.Module):
    def __init__(self, unet):
        super().__init__()
        self.encoder = copy.deepcopy(unet.encoder)
        widths = self.encoder.widths
        layers, i = [], 3
        for o, stride in ((16, 1), (32, 2), (96, 2), (192, 2)):
            layers += [nn.Conv2d(i, o, 3, padding=1, stride=stride), nn.SiLU()]
            i = o
        self.hint = nn.Sequential(*layers, zero_module(nn.Conv2d(i, widths[0], 3, padding=1)))
        self.down_blocks = nn.ModuleList(zero_module(nn.Conv2d(w, w, 1)) for w in widths)
        self.mid_block = zero_module(nn.Conv2d(widths[-1], widths[-1], 1))

    def forward(self, x, t, text, sketch):
        x, skips, _ = self.encoder(x, t, text, self.hint(sketch))
        return [conv(s) for conv, s in zip(self.down_blocks, skips)], self.mid_block(x)


def main():
    weight_dtype = torch.bfloat16
    unet = UNet()
    controlnet = ControlNet(unet).cuda().train()
    unet.requires_grad_(False).to("cuda", weight_dtype)
    alphas = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2, 0).cuda()
    optimizer = torch.optim.AdamW(controlnet.parameters(), lr=1e-5, weight_decay=1e-2)
    empty = torch.randn(1, 77, 512, device="cuda", dtype=weight_dtype)
    for step in range(12):
        latents = torch.randn(14, 4, 32, 32).cuda()
        sketch = (torch.rand(14, 3, 256, 256) > 0.95).float().cuda()
        text = torch.randn(14, 77, 512).to("cuda", weight_dtype)
        dropped = (torch.rand(14, 1, 1) < 0.1).cuda()
        text = torch.where(dropped, empty, text)
        noise = torch.randn_like(latents)
        t = torch.randint(0, 1000, (14,), device="cuda")
        a = alphas[t][:, None, None, None]
        noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
        with torch.autocast("cuda", weight_dtype):
            down, mid = controlnet(noisy, t, text, sketch)
            pred = unet(noisy.to(weight_dtype), t, text, down, mid)
        loss = F.mse_loss(pred.float(), noise)
        (loss / 2).backward()
        if step % 2:
            torch.nn.utils.clip_grad_norm_(controlnet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.detach().item():.4f}")
    with TemporaryDirectory() as folder:
        torch.save(controlnet.state_dict(), Path(folder) / "controlnet.pt")


if __name__ == "__main__":
    main()
