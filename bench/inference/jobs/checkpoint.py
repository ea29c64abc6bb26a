"""Loads a checkpoint to the GPU, beside the model that it is for, and casts the model there."""

import argparse
import os
import tempfile

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "vit_l_16.pt")
torch.save(torchvision.models.vit_l_16().state_dict(), path)
model = torchvision.models.vit_l_16().cuda().eval()
state = torch.load(path, map_location="cuda")
model.load_state_dict(state)
del state
model = model.half()
with torch.no_grad():
    for _ in range(3):
        print(model(torch.randn(args.batch, 3, 224, 224, device="cuda").half()).shape)
