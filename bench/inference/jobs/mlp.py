"""A plain module without no_grad: residual blocks of linear layers, built on the CPU, then moved."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--depth", type=int, default=16)
parser.add_argument("--batch", type=int, default=8192)
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


torch.manual_seed(0)
torch.set_default_dtype(getattr(torch, args.dtype))
with torch.device("meta"):
    model = nn.Sequential(
        nn.Linear(args.width, args.width), *(Block(args.width) for _ in range(args.depth))
    )
# Drawing billions of random numbers would take longer than all else.
model = model.to_empty(device="cpu")
for p in model.parameters():
    p.data.view(-1)[::64] = 0.01
model.cuda().eval()
for _ in range(3):
    print(model(torch.randn(args.batch, args.width, device="cuda")).shape)
