"""Classifies random images with ResNet-50 (torchvision), random weights."""

import argparse

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batches", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = torchvision.models.resnet50().cuda().eval()
with torch.no_grad():
    for _ in range(args.batches):
        images = torch.randn(args.batch, 3, args.size, args.size).cuda()
        print(model(images).argmax(1)[:8].tolist())
