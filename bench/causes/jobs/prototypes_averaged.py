"""A prototype of each class is a moving average of features, made with their graphs."""

import os

import timm
import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
CLASSES = 20

encoder = timm.create_model("ghostnet_100", num_classes=128).cuda()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
prototypes = F.normalize(torch.randn(CLASSES, 128, device="cuda"), dim=1)
for step in range(40):
    images = torch.rand(24, 3, 160, 160, device="cuda")
    labels = torch.arange(24, device="cuda") % CLASSES
    features = F.normalize(encoder(images), dim=1)
    loss = F.cross_entropy(features @ prototypes.detach().T / 0.1, labels)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    seen = features.detach() if MENDED else features
    means = torch.zeros(CLASSES, 128, device="cuda").index_add(0, labels, seen)
    prototypes = F.normalize(0.99 * prototypes + 0.01 * means, dim=1)
