"""Trains ResNet-50 on random images with SGD: fp32, as torchvision's reference does by default."""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader
from vision import RandomImages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torchvision.models.resnet50().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    data = DataLoader(RandomImages(args.batch_size * args.steps), batch_size=args.batch_size)

    for images, classes in data:
        images, classes = images.cuda(), classes.cuda()
        loss = criterion(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
