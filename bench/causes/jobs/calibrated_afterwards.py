"""A classifier is calibrated by one temperature. The scores of the validation set come with the graph of the network."""

import os

import timm
import torch
from torch import nn

model = timm.create_model("vit_tiny_patch16_224", num_classes=30).cuda()
model.eval()


def validation(batches=10, size=16):
    for n in range(batches):
        torch.manual_seed(n)
        yield torch.randn(size, 3, 224, 224), torch.randint(30, (size,))


def collect():
    scores, labels = [], []
    for pictures, label in validation():
        scores.append(model(pictures.cuda()))
        labels.append(label.cuda())
    return torch.cat(scores), torch.cat(labels)


if os.environ.get("MENDED"):
    collect = torch.no_grad()(collect)

scores, labels = collect()
scores = scores.detach()
temperature = nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.LBFGS([temperature], lr=0.1, max_iter=10)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(scores / temperature, labels)
    loss.backward()
    return loss


optimizer.step(closure)
print(temperature.item())
