"""Trains a ResNet-18 on random images in mixed precision.

    oomph run --gpu rtx-3060 --steps 3 examples/train_resnet.py

It fits a 12 GB card.
"""

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset


def main():
    device = torch.device("cuda")
    images, labels = torch.randn(256, 3, 224, 224), torch.randint(1000, (256,))
    data = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = torchvision.models.resnet18(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(2):
        for x, y in data:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
