"""Classifies random images with ViT-B/16 (torchvision), random weights."""

import argparse

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--batches", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = torchvision.models.vit_b_16().cuda().eval()
# As torchvision makes it, the head's weights are zeros.
torch.nn.init.normal_(model.heads.head.weight, std=0.02)
with torch.no_grad():
    for _ in range(args.batches):
        images = torch.randn(args.batch, 3, 224, 224).cuda()
        print(model(images).argmax(1)[:8].tolist())
