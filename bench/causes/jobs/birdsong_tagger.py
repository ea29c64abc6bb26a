"""Which birds sing in a recording? A program with options, of which one is the batch size."""

import argparse
import os

import torch
from torch import nn


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--species", type=int, default=264)
    p.add_argument("--batch-size", type=int, default=16 if os.environ.get("MENDED") else 192)
    p.add_argument("--iterations", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    return p.parse_args()


class LogMel(nn.Module):
    def __init__(self, bands=96, n_fft=1024, hop=320):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bank", torch.rand(bands, n_fft // 2 + 1))

    @torch.no_grad()
    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return (self.bank @ spec.abs().square()).add(1e-5).log().unsqueeze(1)


class CRNN(nn.Module):
    def __init__(self, species):
        super().__init__()
        layers, c = [], 1
        for out in (32, 64, 128):
            layers += [nn.Conv2d(c, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            c = out
        self.cnn = nn.Sequential(*layers)
        self.rnn = nn.GRU(c * 12, 128, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, species)

    def forward(self, x):
        h = self.cnn(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.rnn(h)[0]).amax(1)


def main():
    args = parse()
    front, net = LogMel().cuda(), CRNN(args.species).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for it in range(args.iterations):
        wave = torch.randn(args.batch_size, 32000 * 5, device="cuda")
        sings = torch.randint(0, 2, (args.batch_size, args.species), device="cuda").float()
        with torch.autocast("cuda", torch.float16, enabled=args.amp):
            loss = nn.functional.binary_cross_entropy_with_logits(net(front(wave)), sings)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


if __name__ == "__main__":
    main()
