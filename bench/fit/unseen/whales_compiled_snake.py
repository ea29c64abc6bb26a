"""Calls of whales cut out of noise: a 1-D U-Net over raw sound whose snake activations are one function under torch.compile, multi-scale spectral loss, NAdam."""

import torch
import torch.nn as nn


@torch.compile(dynamic=True)
def snake(x, alpha):
    return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


class Snake(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, c, 1))

    def forward(self, x):
        return snake(x, self.alpha)


class Unit(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.body = nn.Sequential(
            Snake(c),
            nn.Conv1d(c, c, 7, padding=3 * dilation, dilation=dilation),
            Snake(c),
            nn.Conv1d(c, c, 1),
        )

    def forward(self, x):
        return x + self.body(x)


class WhaleNet(nn.Module):
    def __init__(self, base=32, strides=(2, 4, 4)):
        super().__init__()
        self.head = nn.Conv1d(1, base, 7, padding=3)
        self.enc, self.dec = nn.ModuleList(), nn.ModuleList()
        c = base
        for s in strides:
            self.enc.append(
                nn.Sequential(
                    Unit(c, 1), Unit(c, 3), Snake(c), nn.Conv1d(c, 2 * c, 2 * s, s, s // 2)
                )
            )
            self.dec.insert(
                0,
                nn.Sequential(
                    nn.ConvTranspose1d(2 * c, c, 2 * s, s, s // 2), Unit(c, 1), Unit(c, 3)
                ),
            )
            c *= 2
        self.mid = nn.GRU(c, c // 2, bidirectional=True, batch_first=True)
        self.tail = nn.Conv1d(base, 1, 7, padding=3)

    def encode(self, x):
        x = self.head(x)
        skips = [x]
        for e in self.enc:
            x = e(x)
            skips.append(x)
        return skips

    def decode(self, x, skips):
        for d, s in zip(self.dec, skips[-2::-1]):
            x = d(x) + s
        return torch.tanh(self.tail(x))


def spectral(a, b):
    loss = 0
    for n in (256, 512, 1024):
        window = torch.hann_window(n, device=a.device)
        sa, sb = (
            torch.stft(x.squeeze(1), n, n // 4, window=window, return_complex=True).abs()
            for x in (a, b)
        )
        loss = (
            loss
            + (sa - sb).norm() / sb.norm()
            + (sa + 1e-5).log().sub((sb + 1e-5).log()).abs().mean()
        )
    return loss


model = WhaleNet().cuda()
opt = torch.optim.NAdam(model.parameters(), lr=3e-4, decoupled_weight_decay=True, weight_decay=1e-3)
for i in range(4):
    t = torch.arange(16_384, device="cuda") / 4000
    pitch = torch.empty(40, 1, 1, device="cuda").uniform_(50, 400)
    call = 0.3 * torch.sin(6.283 * pitch * t)
    noisy = call + 0.2 * torch.randn_like(call)
    skips = model.encode(noisy)
    x, _ = model.mid(skips[-1].transpose(1, 2))
    clean = model.decode(x.transpose(1, 2).contiguous(), skips)
    loss = (clean - call).abs().mean() + 0.5 * spectral(clean, call)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    opt.step()
    print(i, loss.item())
