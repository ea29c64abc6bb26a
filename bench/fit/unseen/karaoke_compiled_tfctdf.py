"""Voices out of songs by compiled TFC-TDF blocks on complex spectrograms, loss on the waveform, an average of weights."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

N_FFT, HOP, BINS, FRAMES = 4096, 1024, 1024, 256


class TFCTDF(nn.Module):
    """Convolutions in time and frequency, then a bottleneck over all frequencies."""

    def __init__(self, width, bins, layers=2, factor=8):
        super().__init__()
        self.conv = nn.Sequential()
        for _ in range(layers):
            self.conv.extend(
                [nn.InstanceNorm2d(width, affine=True), nn.GELU(), nn.Conv2d(width, width, 3, 1, 1)]
            )
        self.dense = nn.Sequential(
            nn.InstanceNorm2d(width, affine=True),
            nn.GELU(),
            nn.Linear(bins, bins // factor, bias=False),
            nn.InstanceNorm2d(width, affine=True),
            nn.GELU(),
            nn.Linear(bins // factor, bins, bias=False),
        )

    def forward(self, x):
        y = self.conv(x)
        return x + y + self.dense(y)


class Net(nn.Module):
    def __init__(self, width=96, depth=8):
        super().__init__()
        self.enter = nn.Conv2d(4, width, (2, 4), (2, 4))
        self.blocks = nn.ModuleList(TFCTDF(width, BINS // 4) for _ in range(depth))
        self.leave = nn.ConvTranspose2d(width, 4, (2, 4), (2, 4))

    def forward(self, spectrum):
        first = x = self.enter(spectrum)
        for block in self.blocks:
            x = block(x)
        return self.leave(x * first)


class Separator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.register_buffer("window", torch.hann_window(N_FFT))

    def spectrum(self, wave):
        b, c, n = wave.shape
        s = torch.stft(wave.reshape(b * c, n), N_FFT, HOP, window=self.window, return_complex=True)
        s = torch.view_as_real(s[:, :BINS, :FRAMES]).permute(0, 3, 2, 1)
        return s.reshape(b, 2 * c, FRAMES, BINS)

    def wave(self, x, n):
        b = len(x)
        x = F.pad(x, (0, N_FFT // 2 + 1 - BINS)).reshape(b * 2, 2, FRAMES, -1).permute(0, 3, 2, 1)
        x = torch.view_as_complex(x.contiguous())
        return torch.istft(x, N_FFT, HOP, window=self.window, length=n).view(b, 2, n)

    def forward(self, mix):
        return self.wave(self.net(self.spectrum(mix)), mix.size(-1))


def song(batch):
    n = HOP * (FRAMES - 1)
    time = torch.arange(n, device="cuda") / 44100
    pitch = 110 * 2 ** torch.randint(0, 36, (batch, 1, 1), device="cuda").div(12)
    voice = 0.3 * torch.sin(2 * torch.pi * pitch * time).expand(batch, 2, n)
    return voice + 0.1 * torch.randn(batch, 2, n, device="cuda"), voice


def main(batch=8, steps=5):
    torch.manual_seed(19)
    model = Separator().cuda()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    for block in model.net.blocks:  # one compilation serves them all
        block.compile()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            mix, voice = song(batch)
            loss = F.l1_loss(model(mix), voice)
            (loss / 2).backward()
        optimizer.step()
        average.update_parameters(model)
        print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
