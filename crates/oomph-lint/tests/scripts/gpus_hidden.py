"""A submission for a contest without GPUs."""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from torch import nn

DEVICE = torch.device("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 4)

    def forward(self, x):
        y, _ = self.attn(x, x, x)
        return y.to(x.device)


net = Block().to(DEVICE)
net.load_state_dict(torch.load("net.pt", map_location=DEVICE))
net.eval()
print(net(torch.zeros(1, 5, 64)))
