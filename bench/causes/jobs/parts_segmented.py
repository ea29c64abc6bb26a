"""Evaluation of a segmentation model collects scores and labels by image."""

import torch
import torchvision


@torch.no_grad()
def evaluate(model, loader):
    results = {"scores": [], "labels": []}
    for images, labels in loader:
        scores = model(images.cuda())["out"].softmax(1)
        results["scores"] += list(scores)
        results["labels"] += list(labels.cuda())
    scores, labels = torch.stack(results["scores"]), torch.stack(results["labels"])
    return (scores.argmax(1) == labels).float().mean().item()


def loader(batches):
    for _ in range(batches):
        yield torch.rand(4, 3, 256, 256), torch.randint(0, 21, (4, 256, 256))


model = (
    torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None).cuda().eval()
)
print(evaluate(model, loader(120)))
