"""A decoder draws many images at once, with gradients on."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(64, 256 * 8 * 8)
        layers, width = [], 256
        for _ in range(5):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width // 2, 3, padding=1), nn.SiLU()]
            width //= 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, z):
        return self.layers(self.start(z).view(-1, 256, 8, 8)).sigmoid()


decoder = Decoder().cuda()
images = decoder(torch.randn(64, 64, device="cuda"))
print(images.detach().cpu().shape)
