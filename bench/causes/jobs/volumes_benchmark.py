"""Convolutions over volumes, with cuDNN's benchmark."""
import torch
from torch import nn

torch.backends.cudnn.benchmark = True
net = nn.Sequential(
    nn.Conv3d(2, 48, 3, padding=1), nn.ReLU(inplace=True),
    nn.Conv3d(48, 48, 3, padding=1), nn.ReLU(inplace=True), nn.Conv3d(48, 2, 1),
).cuda()  # fmt: skip
with torch.inference_mode():
    for _ in range(3):
        scan = torch.randn(1, 2, 160, 160, 128, device="cuda")
        net(scan)
