"""EDM on textures of 64 px: preconditioned U-Net with attention, noise levels log-normal, EMA by hand, bf16 autocast."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout, emb, attn=False, drop=0.1):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.affine = nn.Linear(emb, 2 * cout)
        self.n2, self.c2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        self.drop = nn.Dropout(drop)
        self.attn = attn
        if attn:
            self.n3 = nn.GroupNorm(32, cout)
            self.qkv, self.proj = nn.Conv2d(cout, 3 * cout, 1), nn.Conv2d(cout, cout, 1)

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.affine(emb)[..., None, None].chunk(2, 1)
        h = self.c2(self.drop(F.silu(self.n2(h) * (scale + 1) + shift)))
        x = (self.skip(x) + h) * 0.7071
        if self.attn:
            b, c, hh, ww = x.shape
            q, k, v = self.qkv(self.n3(x)).reshape(b, 3, c // 64, 64, hh * ww).unbind(1)
            w = torch.einsum("bhci,bhcj->bhij", q, k / 8).softmax(-1)
            a = torch.einsum("bhij,bhcj->bhci", w, v).reshape(b, c, hh, ww)
            x = (x + self.proj(a)) * 0.7071
        return x


class UNet(nn.Module):
    def __init__(self, ch=128, mult=(1, 2, 2), blocks=2, attn_at=(16,), size=64):
        super().__init__()
        emb = ch * 4
        self.emb = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.register_buffer("freqs", torch.exp(torch.linspace(0, 6, ch // 2)))
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        self.enc, self.dec = nn.ModuleList(), nn.ModuleList()
        c, widths = ch, [ch]
        for level, m in enumerate(mult):
            for _ in range(blocks):
                self.enc.append(Block(c, ch * m, emb, size >> level in attn_at))
                c = ch * m
                widths.append(c)
            if level < len(mult) - 1:
                self.enc.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                widths.append(c)
        self.mid = Block(c, c, emb, True)
        for level, m in reversed(list(enumerate(mult))):
            for _ in range(blocks + 1):
                self.dec.append(Block(c + widths.pop(), ch * m, emb, size >> level in attn_at))
                c = ch * m
            if level:
                self.dec.append(nn.Upsample(scale_factor=2))
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, noise):
        arg = noise[:, None] * self.freqs
        emb = self.emb(torch.cat([arg.cos(), arg.sin()], 1))
        h = self.stem(x)
        stack = [h]
        for layer in self.enc:
            h = layer(h, emb) if isinstance(layer, Block) else layer(h)
            stack.append(h)
        h = self.mid(h, emb)
        for layer in self.dec:
            h = layer(torch.cat([h, stack.pop()], 1), emb) if isinstance(layer, Block) else layer(h)
        return self.out(h)


def denoise(net, x, sigma, data=0.5):
    s = sigma[:, None, None, None]
    c_skip = data**2 / (s**2 + data**2)
    c_out = s * data / (s**2 + data**2).sqrt()
    c_in = 1 / (data**2 + s**2).sqrt()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        f = net(c_in * x, sigma.log() / 4)
    return c_skip * x + c_out * f.float()


def main(steps=6, batch=32):
    torch.manual_seed(0)
    net = UNet().cuda()
    ema = copy.deepcopy(net).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.9, 0.99))
    images = torch.rand(256, 3, 64, 64) - 0.5
    for step in range(steps):
        x = images[torch.randint(0, len(images), (batch,))].cuda()
        sigma = (torch.randn(batch, device="cuda") * 1.2 - 1.2).exp()
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        noised = x + torch.randn_like(x) * sigma[:, None, None, None]
        loss = (weight[:, None, None, None] * (denoise(net, noised, sigma) - x) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 2e-4 * min((step + 1) / 100, 1)
        optimizer.step()
        with torch.no_grad():
            for p_ema, p in zip(ema.parameters(), net.parameters()):
                p_ema.lerp_(p, 0.001)
        print(step, loss.item())


if __name__ == "__main__":
    main()
