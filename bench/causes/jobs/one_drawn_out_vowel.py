"""FastSpeech: each sound lasts as many frames as its label says. In one label of the corpus a vowel lasts milliseconds, not frames."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class ConvBlock(nn.Module):
    def __init__(self, d, kernel=9):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.deep = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.wide, self.back = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        h = self.deep(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.back(F.gelu(self.wide(h)))


class FastSpeech(nn.Module):
    def __init__(self, sounds=80, d=192):
        super().__init__()
        self.embed = nn.Embedding(sounds, d)
        self.encoder = nn.Sequential(*(ConvBlock(d) for _ in range(3)))
        self.lasts = nn.Linear(d, 1)
        self.decoder = nn.Sequential(*(ConvBlock(d) for _ in range(4)))
        self.mel = nn.Linear(d, 80)

    def forward(self, sounds, places):
        h = self.encoder(self.embed(sounds))
        longer = h.gather(1, places[:, :, None].expand(-1, -1, h.shape[2]))
        return self.mel(self.decoder(longer)), self.lasts(h).squeeze(2)


def collate(utterances):
    """Which sound is heard in each frame; short utterances are padded with their last one."""
    frames = max(int(lasts.sum()) for _, lasts in utterances)
    places = []
    for sounds, lasts in utterances:
        heard = torch.repeat_interleave(torch.arange(len(sounds)), lasts)
        places.append(F.pad(heard, (0, frames - len(heard)), value=len(sounds) - 1))
    sounds, lasts = zip(*utterances)
    return torch.stack(sounds), torch.stack(lasts), torch.stack(places)


def corpus(batches=9, batch=8, sounds=50):
    for n in range(batches):
        lasts = torch.randint(3, 11, (batch, sounds))
        if n == 6:
            lasts[2, 17] = 31_500
        if MENDED:
            lasts.clamp_(max=60)
        yield collate([(torch.randint(0, 80, (sounds,)), row) for row in lasts])


model = FastSpeech().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for sounds, lasts, places in corpus():
    mel, guess = model(sounds.cuda(), places.cuda())
    wanted = torch.rand(mel.shape, device="cuda")
    loss = F.l1_loss(mel, wanted) + F.mse_loss(guess, lasts.cuda().float().log())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(places.shape[1], "frames", loss.item())
