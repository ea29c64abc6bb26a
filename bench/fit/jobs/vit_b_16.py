"""Trains ViT-B/16 on random images with AdamW under bf16 autocast."""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader
from vision import RandomImages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torchvision.models.vit_b_16().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    criterion = torch.nn.CrossEntropyLoss()
    data = DataLoader(RandomImages(args.batch_size * args.steps), batch_size=args.batch_size)

    for images, classes in data:
        images, classes = images.cuda(), classes.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
