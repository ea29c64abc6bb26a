"""Free parking places with torchvision's RetinaNet, from scratch, SGD with warm-up, AMP."""

import random

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Places(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(i)
        image = torch.rand(3, 512, 640)
        boxes = []
        for _ in range(rng.randint(3, 12)):
            x, y = rng.uniform(0, 540), rng.uniform(0, 420)
            boxes.append([x, y, x + rng.uniform(20, 90), y + rng.uniform(20, 80)])
        labels = torch.tensor([rng.randint(1, 2) for _ in boxes])
        return image, {"boxes": torch.tensor(boxes), "labels": labels}


def collate(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader, device, scaler):
    model.train()
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=5)
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        with torch.autocast("cuda", dtype=torch.float16):
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        print({k: round(v.item(), 3) for k, v in losses.items()})


def main():
    device = torch.device("cuda")
    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=512, max_size=640
    ).to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Places(8 * 6), batch_size=8, shuffle=True, collate_fn=collate)
    train_one_epoch(model, optimizer, loader, device, torch.amp.GradScaler("cuda"))


if __name__ == "__main__":
    main()
