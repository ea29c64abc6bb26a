"""A detector is trained on more pictures at once than there is room for; targets are dictionaries, as torchvision wants them."""

import os

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

PICTURES = 4 if os.environ.get("MENDED") else 48
with torch.device("cuda"):
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
model.train()


def batch(count):
    pictures = [torch.rand(3, 320, 320, device="cuda") for _ in range(count)]
    corner = torch.rand(count, 3, 2, device="cuda") * 150
    boxes = torch.cat([corner, corner + 20 + torch.rand(count, 3, 2, device="cuda") * 100], 2)
    targets = [
        {"boxes": b, "labels": torch.tensor([1, 2, 3], device="cuda")} for b in boxes.unbind()
    ]
    return pictures, targets


for _ in range(2):
    losses = model(*batch(PICTURES))
    loss = sum(losses.values())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
