"""Nowcasts of radar echoes around tornadoes: SimVP (encoder, gated translator, decoder), bf16."""

import os
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STEPS = int(os.environ.get("JOB_STEPS", "5"))
T_IN = T_OUT = 10
SIZE = 160


class RadarEchoes(IterableDataset):
    """Gaussian echoes that move, grow and decay over a grid."""

    def __iter__(self):
        grid, times = torch.arange(SIZE), torch.arange(T_IN + T_OUT)[:, None]
        while True:
            movie = torch.zeros(T_IN + T_OUT, 1, SIZE, SIZE)
            for _ in range(random.randint(2, 4)):
                cx, cy = random.uniform(0, SIZE), random.uniform(0, SIZE)
                dx, dy = random.gauss(0, 3), random.gauss(0, 3)
                width = random.uniform(6, 20)
                column = torch.exp(-((grid - cx - times * dx) ** 2) / (2 * width**2))
                row = torch.exp(-((grid - cy - times * dy) ** 2) / (2 * width**2))
                movie[:, 0] += row[:, :, None] * column[:, None, :]
            yield movie[:T_IN].clamp_(0, 1), movie[T_IN:].clamp_(0, 1)


class ConvSC(nn.Module):
    def __init__(self, c_in, c_out, down=False, up=False):
        super().__init__()
        if up:
            self.conv = nn.Sequential(nn.Conv2d(c_in, c_out * 4, 3, padding=1), nn.PixelShuffle(2))
        else:
            self.conv = nn.Conv2d(c_in, c_out, 3, stride=2 if down else 1, padding=1)
        self.norm = nn.GroupNorm(2, c_out)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class GatedAttention(nn.Module):
    """Large-kernel attention split in depthwise, dilated and pointwise convolutions."""

    def __init__(self, dim, ratio=4, scale=1e-2):
        super().__init__()
        self.n1, self.n2 = nn.BatchNorm2d(dim), nn.BatchNorm2d(dim)
        self.proj_in = nn.Conv2d(dim, dim, 1)
        self.local = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.far = nn.Conv2d(dim, dim, 7, padding=9, dilation=3, groups=dim)
        self.gate = nn.Conv2d(dim, 2 * dim, 1)
        self.proj_out = nn.Conv2d(dim, dim, 1)
        self.mlp = nn.Sequential(
            nn.Conv2d(dim, ratio * dim, 1),
            nn.Conv2d(ratio * dim, ratio * dim, 3, padding=1, groups=ratio * dim),
            nn.GELU(),
            nn.Conv2d(ratio * dim, dim, 1),
        )
        self.s1 = nn.Parameter(scale * torch.ones(dim, 1, 1))
        self.s2 = nn.Parameter(scale * torch.ones(dim, 1, 1))

    def forward(self, x):
        y = F.gelu(self.proj_in(self.n1(x)))
        value, gate = self.gate(self.far(self.local(y))).chunk(2, 1)
        x = x + self.s1 * self.proj_out(value * gate.sigmoid())
        return x + self.s2 * self.mlp(self.n2(x))


class SimVP(nn.Module):
    def __init__(self, hid=64, dim=512, depth=8):
        super().__init__()
        self.enc = nn.ModuleList(
            [ConvSC(1, hid), ConvSC(hid, hid, down=True), ConvSC(hid, hid), ConvSC(hid, hid, True)]
        )
        self.into = nn.Conv2d(T_IN * hid, dim, 1)
        self.translator = nn.Sequential(*[GatedAttention(dim) for _ in range(depth)])
        self.back = nn.Conv2d(dim, T_OUT * hid, 1)
        self.dec = nn.ModuleList(
            [ConvSC(hid, hid, up=True), ConvSC(hid, hid), ConvSC(hid, hid, up=True)]
        )
        self.merge = ConvSC(2 * hid, hid)
        self.readout = nn.Conv2d(hid, 1, 1)

    def forward(self, x):
        B = x.shape[0]
        x = skip = self.enc[0](x.flatten(0, 1))
        for layer in self.enc[1:]:
            x = layer(x)
        x = x.unflatten(0, (B, T_IN)).flatten(1, 2)
        x = self.back(self.translator(self.into(x)))
        x = x.unflatten(1, (T_OUT, -1)).flatten(0, 1)
        for layer in self.dec:
            x = layer(x)
        return self.readout(self.merge(torch.cat([x, skip], 1))).unflatten(0, (B, T_OUT))


def main():
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = SimVP().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=10_000)
    batches = iter(DataLoader(RadarEchoes(), batch_size=12, num_workers=2, pin_memory=True))
    for step in range(1, STEPS + 1):
        past, future = (x.to(device, non_blocking=True) for x in next(batches))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            forecast = model(past)
        mse = F.mse_loss(forecast.float(), future)
        change = F.l1_loss(forecast[:, 1:] - forecast[:, :-1], future[:, 1:] - future[:, :-1])
        loss = mse + 0.1 * change
        opt.zero_grad(set_to_none=True)
        loss.backward()
        grad = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {step:4d}  loss {loss.item():.5f}  mse {mse.item():.5f}  grad {grad:.3f}")


if __name__ == "__main__":
    main()
