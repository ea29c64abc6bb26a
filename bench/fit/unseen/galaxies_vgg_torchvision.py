"""Shapes of galaxies by torchvision's VGG-19 with batch norm: 37 fractions by regression, Adam, plain fp32, test phase."""

import torch
import torch.nn as nn
import torchvision

IMAGE = 224


def get_batches(n, batch_size):
    for _ in range(n):
        yield torch.rand(batch_size, 3, IMAGE, IMAGE), torch.rand(batch_size, 37)


def rmse(pred, target):
    return torch.sqrt(nn.functional.mse_loss(pred, target) + 1e-8)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = torchvision.models.vgg19_bn(weights=None, num_classes=37)
    model.classifier.append(nn.Sigmoid())
    optim = torch.optim.Adam(model.parameters(), lr=1e-4)

    for epoch in range(2):
        model.train()
        for x, y in get_batches(2, 24):
            x, y = x.to(device), y.to(device)
            optim.zero_grad()
            loss = rmse(model(x), y)
            loss.backward()
            optim.step()
        model.eval()
        with torch.no_grad():
            test = [rmse(model(x.to(device)), y.to(device)).item() for x, y in get_batches(1, 24)]
        print(f"epoch {epoch}: train {loss.item():.4f} test {sum(test):.4f}")


if __name__ == "__main__":
    main()
