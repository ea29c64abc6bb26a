"""Syllables of birds: spectrograms by torch.stft, masks, a CRNN with bidirectional LSTMs, CTC."""

import torch
from torch import nn
from torch.nn import functional as F


class Spectrogram(nn.Module):
    def __init__(self, n_fft=512, hop=160, bands=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", torch.rand(n_fft // 2 + 1, bands) / 50)

    @torch.no_grad()
    def forward(self, wave):
        spec = (
            torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True).abs()
            ** 2
        )
        return torch.log(spec.transpose(1, 2) @ self.mel + 1e-6)


def spec_augment(x, freq=20, time=50):
    f0, t0 = torch.randint(0, x.shape[2] - freq, ()), torch.randint(0, x.shape[1] - time, ())
    x = x.clone()
    x[:, :, f0 : f0 + freq] = 0
    x[:, t0 : t0 + time] = 0
    return x


class CRNN(nn.Module):
    def __init__(self, classes=60, width=384):
        super().__init__()
        layers, c = [], 1
        for o, stride in ((48, (1, 2)), (96, (2, 2)), (128, (1, 2)), (128, (1, 2))):
            layers += [
                nn.Conv2d(c, o, 3, stride, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.Hardtanh(0, 20),
            ]
            layers += [nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
            c = o
        self.cnn = nn.Sequential(*layers)
        self.proj = nn.Linear(128 * 8, width)
        self.rnn = nn.LSTM(width, width, 3, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(2 * width, classes + 1)

    def forward(self, x):
        x = self.cnn(x[:, None])
        x = self.proj(x.permute(0, 2, 1, 3).flatten(2))
        x, _ = self.rnn(x)
        return self.out(x).log_softmax(-1)


def train(steps=8, batch=12, seconds=12):
    features, model = Spectrogram().cuda(), CRNN().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for step in range(steps):
        waves = torch.randn(batch, 16_000 * seconds).cuda()
        targets = torch.randint(1, 61, (batch, 80)).cuda()
        x = features(waves)
        x = spec_augment((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5))
        log_probs = model(x).transpose(0, 1)
        lengths = torch.full((batch,), log_probs.shape[0])
        loss = F.ctc_loss(log_probs, targets, lengths, torch.full((batch,), 80), zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 400)
        optimizer.step()
        schedule.step()
        print(f"step {step} ctc {loss.item():.3f}")


if __name__ == "__main__":
    train()
