"""Where was this photo taken? One class per cell of the globe."""

import os

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")
CELLS = 400_000


class Geolocator(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torchvision.models.shufflenet_v2_x0_5(num_classes=64)
        self.cells = nn.Linear(64, CELLS)

    def cost(self, z, y):
        return F.cross_entropy(self.cells(z), y, label_smoothing=0.1, reduction="sum")

    def forward(self, images, y):
        z = F.relu(self.backbone(images))
        if MENDED:
            pairs = zip(z.split(48), y.split(48))
            return sum(checkpoint(self.cost, a, b, use_reentrant=False) for a, b in pairs) / len(y)
        return self.cost(z, y) / len(y)


model = Geolocator().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for step in range(4):
    images = torch.randn(768, 3, 40, 40, device="cuda")
    cells = torch.randint(0, CELLS, (768,), device="cuda")
    optimizer.zero_grad()
    loss = model(images, cells)
    loss.backward()
    optimizer.step()
