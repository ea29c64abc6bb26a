"""Fills in what is missing in frescoes: an encoder-decoder with attention in the middle."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class SelfAttention2d(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = self.q(y).flatten(2), self.k(y).flatten(2), self.v(y).flatten(2)
        if MENDED:
            q, k, v = (t.transpose(1, 2).unsqueeze(1).contiguous() for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
        else:
            w_ = torch.bmm(q.transpose(1, 2), k) * c**-0.5
            w_ = F.softmax(w_, dim=2)
            y = torch.bmm(v, w_.transpose(1, 2))
        return x + self.proj_out(y.reshape(b, c, h, w))


def res(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1), nn.GroupNorm(8, cout), nn.SiLU(inplace=True)
    )


class Inpainter(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.encode = nn.Sequential(res(4, 16, 2), res(16, 32, 2), res(32, c))
        self.middle = nn.Sequential(
            SelfAttention2d(c), res(c, c), SelfAttention2d(c), res(c, c), SelfAttention2d(c)
        )
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=2), res(c, 32), nn.Upsample(scale_factor=2), res(32, 16),
            nn.Conv2d(16, 3, 3, 1, 1),
        )  # fmt: skip

    def forward(self, image, hole):
        return self.decode(self.middle(self.encode(torch.cat([image * (1 - hole), hole], 1))))


model = Inpainter().cuda()
opt = torch.optim.Adam(model.parameters(), lr=2e-4)
for _ in range(3):
    image = torch.rand(5, 3, 256, 256, device="cuda")
    hole = torch.zeros(5, 1, 256, 256, device="cuda")
    hole[:, :, 80:160, 60:190] = 1
    loss = F.l1_loss(model(image, hole), image)
    opt.zero_grad()
    loss.backward()
    opt.step()
