"""Two voices apart: Conv-TasNet with global layer norm over four-second mixtures, SI-SNR over permutations, gradients accumulated, rate halved on a plateau."""

import itertools

import torch
import torch.nn as nn


class GlobalLayerNorm(nn.Module):
    def __init__(self, channels, eps=1e-8):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))
        self.eps = eps

    def forward(self, y):
        mean = y.mean(dim=(1, 2), keepdim=True)
        power = ((y - mean) ** 2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (y - mean) / torch.sqrt(power + self.eps) + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, bottleneck, hidden, skip, kernel, dilation):
        super().__init__()
        padding = (kernel - 1) * dilation // 2
        self.net = nn.Sequential(
            nn.Conv1d(bottleneck, hidden, 1),
            nn.PReLU(),
            GlobalLayerNorm(hidden),
            nn.Conv1d(hidden, hidden, kernel, padding=padding, dilation=dilation, groups=hidden),
            nn.PReLU(),
            GlobalLayerNorm(hidden),
        )
        self.res_out = nn.Conv1d(hidden, bottleneck, 1)
        self.skip_out = nn.Conv1d(hidden, skip, 1)

    def forward(self, x):
        y = self.net(x)
        return x + self.res_out(y), self.skip_out(y)


class ConvTasNet(nn.Module):
    def __init__(self, N=512, L=16, B=128, H=512, Sc=128, P=3, X=8, R=3, C=2):
        super().__init__()
        self.C = C
        self.encoder = nn.Conv1d(1, N, L, stride=L // 2, bias=False)
        self.norm, self.bottleneck = GlobalLayerNorm(N), nn.Conv1d(N, B, 1)
        self.tcn = nn.ModuleList(
            [TemporalBlock(B, H, Sc, P, 2**x) for _ in range(R) for x in range(X)]
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(Sc, C * N, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(N, 1, L, stride=L // 2, bias=False)

    def forward(self, mixture):
        w = torch.relu(self.encoder(mixture.unsqueeze(1)))
        x, total = self.bottleneck(self.norm(w)), 0
        for block in self.tcn:
            x, s = block(x)
            total = total + s
        masks = self.mask(total).view(len(w), self.C, *w.shape[1:])
        sources = (masks * w.unsqueeze(1)).flatten(0, 1)
        return self.decoder(sources).view(len(w), self.C, -1)


def si_snr(est, ref, eps=1e-8):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + eps)
    noise = est - proj
    return 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)


def pit_loss(est, ref):
    orders = list(itertools.permutations(range(ref.shape[1])))
    scores = torch.stack([si_snr(est, ref[:, list(o)]).mean(1) for o in orders], 1)
    return -scores.max(1).values.mean()


def utterances(batch, seconds=4, rate=8000, generator=None):
    t = torch.arange(seconds * rate) / rate
    pitch = 80 + 200 * torch.rand(batch, 2, 1, generator=generator)
    voice = sum(torch.sin(2 * torch.pi * k * pitch * t) / k for k in range(1, 6))
    return voice + 0.05 * torch.randn(voice.shape, generator=generator)


if __name__ == "__main__":
    torch.manual_seed(20)
    g = torch.Generator().manual_seed(20)
    model = ConvTasNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    accumulate = 2
    for step in range(4):
        running = 0.0
        for _ in range(accumulate):
            clean = utterances(2, generator=g).cuda()
            loss = pit_loss(model(clean.sum(1)), clean) / accumulate
            loss.backward()
            running += loss.item()
        grad = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        plateau.step(running)
        print(f"step {step}: SI-SNR {-running:.2f} dB, |g| {grad.item():.2f}")
