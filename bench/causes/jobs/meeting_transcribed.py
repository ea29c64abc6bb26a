"""Transcribes meetings as they are spoken: a streaming encoder that looks back at what was said."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
LOOK_BACK = 512 if MENDED else None


class StreamingAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, past):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if LOOK_BACK:
            k, v = k[:, :, -LOOK_BACK:].contiguous(), v[:, :, -LOOK_BACK:].contiguous()
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, c)), (k, v)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = StreamingAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, past):
        y, past = self.attention(self.norm1(x), past)
        x = x + y
        return x + self.mlp(self.norm2(x)), past


class Recogniser(nn.Module):
    def __init__(self, width=512, depth=8, pieces=600):
        super().__init__()
        self.stem = nn.Conv1d(80, width, 4, stride=4)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(depth))
        self.head = nn.Linear(width, pieces)

    def stream(self, chunks):
        past = [None] * len(self.layers)
        for chunk in chunks:
            x = self.stem(chunk.cuda()).transpose(1, 2)
            for i, layer in enumerate(self.layers):
                x, past[i] = layer(x, past[i])
            yield self.head(x).argmax(-1).cpu()


def microphones(rooms=12, chunks=64):
    for _ in range(chunks):
        yield torch.randn(rooms, 80, 256)


model = Recogniser().cuda().eval()
with torch.inference_mode():
    pieces = torch.cat(list(model.stream(microphones())), 1)
print("transcribed", tuple(pieces.shape))
