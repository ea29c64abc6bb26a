"""A linear probe on frozen features: only the head learns, yet the backbone makes its graph in every step."""

import os

import timm
import torch
from torch import nn


def features(backbone, images):
    if os.environ.get("MENDED"):
        with torch.no_grad():
            return backbone(images)
    return backbone(images).detach()


backbone = timm.create_model("mixer_s16_224", pretrained=False, num_classes=0).cuda().eval()
probe = nn.Linear(backbone.num_features, 37).cuda()
optimizer = torch.optim.SGD(probe.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)

for epoch in range(1):
    for step in range(5):
        images = torch.rand(96, 3, 224, 224).cuda()
        breed = torch.randint(37, (96,)).cuda()
        loss = loss_fn(probe(features(backbone, images)), breed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
