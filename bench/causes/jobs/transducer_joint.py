"""Speech recognition by a transducer: each frame meets each piece of text, and each pair scores every word piece."""

import os

import torch
from torch import nn

PIECES = 64 if os.environ.get("MENDED") else 4096


class Joint(nn.Module):
    def __init__(self, width, pieces):
        super().__init__()
        self.out = nn.Linear(width, pieces)

    def forward(self, heard, written):
        return self.out(torch.tanh(heard.unsqueeze(2) + written.unsqueeze(1)))


class Transducer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.listener = nn.LSTM(80, width, 3, batch_first=True)
        self.embed, self.predictor = (
            nn.Embedding(PIECES, width),
            nn.LSTM(width, width, batch_first=True),
        )
        self.joint = Joint(width, PIECES)

    def forward(self, frames, text):
        heard, _ = self.listener(frames)
        written, _ = self.predictor(self.embed(text))
        return self.joint(heard[:, ::4], written)


def simplified_loss(logits, text):
    """The mean over frames of the likelihood of each label at its place, in place of the lattice."""
    scores = logits.log_softmax(-1)
    blank = scores[..., 0]
    labels = scores[:, :, :-1].gather(
        -1, text[:, None, 1:, None].expand(-1, scores.shape[1], -1, 1)
    )
    return -(blank.mean() + labels.mean())


model = Transducer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    frames = torch.randn(8, 800, 80, device="cuda")
    text = torch.randint(1, PIECES, (8, 60), device="cuda")
    loss = simplified_loss(model(frames, text), text)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
