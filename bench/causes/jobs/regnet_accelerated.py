"""RegNet under accelerate; the batch was chosen for a larger GPU."""

import os

import torch
import torchvision
from accelerate import Accelerator
from torch.utils.data import DataLoader

PER_DEVICE = 24 if os.environ.get("MENDED") else 160


def collate(numbers):
    return {"pixels": torch.rand(len(numbers), 3, 176, 176), "labels": torch.tensor(numbers) % 100}


def main():
    accelerator = Accelerator()
    model = torchvision.models.regnet_y_1_6gf(num_classes=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    loader = DataLoader(range(PER_DEVICE * 4), batch_size=PER_DEVICE, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(loss.item())


main()
