"""One of several cells of a notebook that hides the GPUs; another uses them."""
import os

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 4)

    def forward(self, x):
        y, _ = self.attn(x, x, x)  # OOM804
        return y


block = Block().to(device)

if "second" in solutions:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # OOM704

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(64, 4)

        def forward(self, x):
            y, _ = self.attn(x, x, x)
            return y
