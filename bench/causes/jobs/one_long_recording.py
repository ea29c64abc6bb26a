"""Speech recognition with CTC: each batch is padded to its longest recording; one is four minutes."""

import os

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

MENDED = os.environ.get("MENDED")
FRAMES = 100  # in a second


class Recogniser(nn.Module):
    def __init__(self, letters=29, width=512):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.Hardtanh(0, 20), nn.Conv2d(32, 32, 3, 2, 1),
            nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.lstm = nn.LSTM(32 * 20, width, 3, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(2 * width, letters)

    def forward(self, mel):
        x = self.front(mel[:, None]).transpose(1, 2).flatten(2)
        return self.letters(self.lstm(x)[0]).log_softmax(-1)


def batches():
    generator = torch.Generator().manual_seed(1)
    for number in range(8):
        seconds = torch.randint(4, 14, (8,), generator=generator).tolist()
        if number == 5:
            seconds[3] = 240
        if MENDED:
            seconds = [min(s, 16) for s in seconds]
        yield [torch.randn(s * FRAMES, 80) for s in seconds]


model = Recogniser().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for recordings in batches():
    mel = pad_sequence(recordings, batch_first=True).cuda()
    scores = model(mel).transpose(0, 1)
    lengths = torch.tensor([len(r) // 4 for r in recordings])
    text = torch.randint(1, 29, (8, 20), device="cuda")
    loss = nn.functional.ctc_loss(scores, text, lengths, torch.full((8,), 20), zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
