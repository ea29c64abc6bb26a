"""Foghorns out of wind and surf: DCCRN speech enhancement (complex convolutions, complex LSTM, SI-SNR) in Lightning."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, SECONDS, BATCH = 16000, 3, 24


class Harbour(Dataset):
    """Clean foghorn blasts, and the same with coloured noise at a random level."""

    def __len__(self):
        return BATCH * 5

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        t = torch.arange(RATE * SECONDS) / RATE
        pitch = 90 + 120 * torch.rand(1, generator=g)
        partials = torch.stack([torch.sin(2 * torch.pi * k * pitch * t) / k for k in range(1, 5)])
        blast = torch.sigmoid(40 * torch.sin(2 * torch.pi * 0.4 * t + i))
        clean = 0.2 * partials.sum(0) * blast
        noise = torch.randn(len(t), generator=g)
        noise = noise + torch.roll(noise, 1) + torch.roll(noise, 2)
        level = 0.02 + 0.2 * torch.rand(1, generator=g)
        return clean + level * noise, clean


class ComplexConv(nn.Module):
    """Real and imaginary halves lie one after the other in the channel dimension."""

    def __init__(self, kind, cin, cout, **kwargs):
        super().__init__()
        self.real = kind(cin // 2, cout // 2, (5, 2), (2, 1), **kwargs)
        self.imag = kind(cin // 2, cout // 2, (5, 2), (2, 1), **kwargs)

    def forward(self, x):
        r, i = x.chunk(2, 1)
        return torch.cat([self.real(r) - self.imag(i), self.real(i) + self.imag(r)], 1)


class ComplexLSTM(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.real = nn.LSTM(size, hidden, 2, batch_first=True)
        self.imag = nn.LSTM(size, hidden, 2, batch_first=True)
        self.proj_r, self.proj_i = nn.Linear(hidden, size), nn.Linear(hidden, size)

    def forward(self, r, i):
        out_r = self.real(r)[0] - self.imag(i)[0]
        out_i = self.real(i)[0] + self.imag(r)[0]
        return self.proj_r(out_r), self.proj_i(out_i)


class DCCRN(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 256, 256), hidden=256):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        sizes = [2, *widths]
        self.down = nn.ModuleList(
            nn.Sequential(
                ComplexConv(nn.Conv2d, a, b, padding=(2, 1)), nn.BatchNorm2d(b), nn.PReLU()
            )
            for a, b in zip(sizes, sizes[1:])
        )
        self.memory = ComplexLSTM(widths[-1] // 2 * 4, hidden)
        self.up = nn.ModuleList()
        for a, b in zip(sizes[:0:-1], sizes[-2::-1]):
            conv = ComplexConv(nn.ConvTranspose2d, 2 * a, b, padding=(2, 0), output_padding=(1, 0))
            tail = [nn.BatchNorm2d(b), nn.PReLU()] if b > 2 else []
            self.up.append(nn.Sequential(conv, *tail))

    def forward(self, wave):
        spec = torch.stft(wave, 512, 100, 400, self.window, return_complex=True)
        x = torch.stack([spec.real, spec.imag], 1)[:, :, 1:]
        skips = []
        for layer in self.down:
            x = layer(x)[..., :-1]
            skips.append(x)
        b, c, f, t = x.shape
        r, i = x.permute(0, 3, 1, 2).chunk(2, 2)
        r, i = self.memory(r.flatten(2), i.flatten(2))
        x = torch.cat([r.view(b, t, c // 2, f), i.view(b, t, c // 2, f)], 2).permute(0, 2, 3, 1)
        for layer in self.up:
            skip = skips.pop()
            xr, xi = x.chunk(2, 1)
            sr, si = skip.chunk(2, 1)
            x = layer(torch.cat([xr, sr, xi, si], 1))[..., :-1]
        mask = nn.functional.pad(x, (0, 0, 1, 0))
        size = torch.sqrt(mask[:, 0] ** 2 + mask[:, 1] ** 2 + 1e-8)
        gain = torch.tanh(size) / size
        masked = spec * torch.complex(mask[:, 0] * gain, mask[:, 1] * gain)
        return torch.istft(masked, 512, 100, 400, self.window, length=wave.shape[-1])


def si_snr(guess, target):
    guess, target = guess - guess.mean(-1, keepdim=True), target - target.mean(-1, keepdim=True)
    scale = (guess * target).sum(-1, keepdim=True) / (target.square().sum(-1, keepdim=True) + 1e-8)
    signal = scale * target
    noise = guess - signal
    return 10 * torch.log10((signal.square().sum(-1) + 1e-8) / (noise.square().sum(-1) + 1e-8))


class Enhancer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = DCCRN()

    def training_step(self, batch, index):
        noisy, clean = batch
        guess = self.net(noisy)
        loss = -si_snr(guess, clean).mean()
        self.log_dict(
            {"loss": loss, "gain": si_snr(guess, clean).mean() - si_snr(noisy, clean).mean()}
        )
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        print(f"step {self.global_step} loss {outputs['loss'].item():.3f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, gradient_clip_val=5.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Enhancer(), DataLoader(Harbour(), BATCH, shuffle=True))
