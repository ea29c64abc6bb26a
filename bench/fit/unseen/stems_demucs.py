"""Stems of songs: a Demucs with gated convolutions, a bidirectional LSTM in the middle, remixed stems as augmentation, L1, Adam, EMA of the weights."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class Songs(Dataset):
    def __init__(self, count, seconds=6, rate=44100):
        self.count, self.samples = count, seconds * rate

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return 0.1 * torch.randn(4, 2, self.samples)


class Remix(nn.Module):
    """Shuffles stems between songs, flips channels and signs."""

    def forward(self, stems):
        b, s, c, t = stems.shape
        order = torch.rand(b, s, device=stems.device).argsort(0)
        stems = stems.gather(0, order[..., None, None].expand(-1, -1, c, t))
        sign = torch.randint(0, 2, (b, s, 1, 1), device=stems.device) * 2 - 1
        return stems * sign


class Demucs(nn.Module):
    def __init__(self, sources=4, channels=48, depth=6, kernel=8, stride=4):
        super().__init__()
        self.sources = sources
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        inp, out = 2, channels
        for level in range(depth):
            self.encoder.append(
                nn.Sequential(
                    nn.Conv1d(inp, out, kernel, stride, 2),
                    nn.ReLU(),
                    nn.Conv1d(out, 2 * out, 1),
                    nn.GLU(1),
                )
            )
            last = level == 0
            self.decoder.insert(
                0,
                nn.Sequential(
                    nn.Conv1d(out, 2 * out, 3, padding=1),
                    nn.GLU(1),
                    nn.ConvTranspose1d(out, 2 * sources if last else inp, kernel, stride, 2),
                    nn.Identity() if last else nn.ReLU(),
                ),
            )
            inp, out = out, 2 * out
        self.lstm = nn.LSTM(inp, inp, 2, bidirectional=True)
        self.linear = nn.Linear(2 * inp, inp)

    def forward(self, mix):
        length = mix.shape[-1]
        x = mix
        saved = []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        y = self.linear(self.lstm(x.permute(2, 0, 1))[0])
        x = y.permute(1, 2, 0)
        for decode in self.decoder:
            skip = saved.pop()
            n = min(x.shape[-1], skip.shape[-1])
            x = decode(x[..., :n] + skip[..., :n])
        x = nn.functional.pad(x, (0, length - x.shape[-1]))
        return x.view(len(mix), self.sources, 2, length)


def main():
    model = Demucs().cuda()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    remix = Remix()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.999))
    for step, stems in enumerate(DataLoader(Songs(4 * 4), batch_size=4)):
        stems = remix(stems.cuda())
        loss = (model(stems.sum(1)) - stems).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update_parameters(model)
        print(step, loss.item())


if __name__ == "__main__":
    main()
