"""A vision tower is fine-tuned as a whole in fp32, with plain gradient descent: weights and gradients alone are too much."""

import os

import timm
import torch

TRAIN_ALL = not os.environ.get("MENDED")

with torch.device("cuda"):
    model = timm.create_model(
        "vit_large_patch16_224", pretrained=False, num_classes=10, img_size=64
    )
if not TRAIN_ALL:
    model.requires_grad_(False)
    model.head.requires_grad_(True)
optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1e-3)
for _ in range(2):
    pictures = torch.randn(2, 3, 64, 64, device="cuda")
    loss = torch.nn.functional.cross_entropy(model(pictures), torch.tensor([1, 2], device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
