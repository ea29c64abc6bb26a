"""Speech from letters, in the manner of Tacotron 2: ninety-six utterances go through the postnet at once."""

import os

import torch
from torch import nn

PARTS = 6 if os.environ.get("MENDED") else 1
BATCH, FRAMES, LETTERS, MELS = 96, 800, 120, 80


class Encoder(nn.Module):
    def __init__(self, symbols=60, width=256):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.convs = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.rnn = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)

    def forward(self, text):
        return self.rnn(self.convs(self.embed(text).transpose(1, 2)).transpose(1, 2))[0]


class Postnet(nn.Sequential):
    """Five convolutions that polish the spectrogram."""

    def __init__(self, width=512):
        sizes, layers = (MELS, width, width, width, width, MELS), []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b), nn.Tanh(), nn.Dropout(0.5)]
        super().__init__(*layers[:-2])


class Voice(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.encoder = Encoder(width=width)
        self.prenet = nn.Sequential(nn.Linear(MELS, 128), nn.ReLU(), nn.Dropout(0.5))
        self.attend = nn.MultiheadAttention(width, 1, batch_first=True)
        self.query = nn.Linear(128, width)
        self.rnn = nn.LSTM(width + 128, 384, batch_first=True)
        self.mel = nn.Linear(384, MELS)
        self.postnet = Postnet()

    def forward(self, text, previous):
        memory, pre = self.encoder(text), self.prenet(previous)
        context, _ = self.attend(self.query(pre), memory, memory, need_weights=False)
        coarse = self.mel(self.rnn(torch.cat([pre, context], 2))[0])
        return coarse, coarse + self.postnet(coarse.transpose(1, 2)).transpose(1, 2)


voice = Voice().cuda()
optimizer = torch.optim.Adam(voice.parameters(), 1e-3)
for step in range(3):
    texts = torch.randint(0, 60, (BATCH, LETTERS))
    mels = torch.rand(BATCH, FRAMES, MELS)
    optimizer.zero_grad()
    for text, mel in zip(texts.chunk(PARTS), mels.chunk(PARTS)):
        text, mel = text.cuda(), mel.cuda()
        coarse, fine = voice(text, mel.roll(1, 1))
        loss = nn.functional.mse_loss(coarse, mel) + nn.functional.mse_loss(fine, mel)
        (loss / PARTS).backward()
    optimizer.step()
    print(step, loss.item())
