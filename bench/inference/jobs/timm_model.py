"""Classifies random images with a model of timm (`pip install timm`), whose checkpoint it loads to the GPU."""

import argparse
import os
import tempfile

import timm
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnext_tiny")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()

torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save(timm.create_model(args.model, pretrained=False).state_dict(), path)
model = timm.create_model(args.model, pretrained=False).cuda().eval()
model.load_state_dict(torch.load(path, map_location="cuda"))
for _ in range(3):
    images = torch.randn(args.batch, 3, args.size, args.size).cuda()
    print(model(images).argmax(1)[:8].tolist())
