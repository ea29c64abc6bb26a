"""Small objects from a drone: torchvision FCOS with ResNet-50 FPN, images of different sizes, warm-up, SGD."""

import random

import torch
from torchvision.models.detection import fcos_resnet50_fpn


def sample(rng):
    h, w = rng.choice([(600, 800), (640, 640), (576, 768)])
    n = rng.randint(3, 12)
    xy = torch.rand(n, 2) * torch.tensor([w - 80.0, h - 80.0])
    wh = torch.rand(n, 2) * 60 + 10
    return torch.rand(3, h, w), {
        "boxes": torch.cat([xy, xy + wh], 1),
        "labels": torch.randint(1, 11, (n,)),
    }


def batches(count, size):
    rng = random.Random(5)
    for _ in range(count):
        yield tuple(zip(*[sample(rng) for _ in range(size)]))


def train(device="cuda", iterations=6, batch_size=4):
    model = fcos_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=11,
        min_size=640,
        max_size=1066,
        trainable_backbone_layers=5,
    )
    model.to(device).train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=5e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3, total_iters=100)

    for it, (images, targets) in enumerate(batches(iterations, batch_size)):
        images = [img.to(device) for img in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        torch.nn.utils.clip_grad_norm_(params, 10.0)
        optimizer.step()
        warmup.step()
        print(it, " ".join(f"{k} {v.item():.3f}" for k, v in loss_dict.items()))


if __name__ == "__main__":
    train()
