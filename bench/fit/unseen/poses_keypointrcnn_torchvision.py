"""Poses of dancers: torchvision's Keypoint R-CNN with seventeen points for each person, lists of pictures and of targets, SGD, AMP in fp16."""

import math
import sys

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import keypointrcnn_resnet50_fpn


class Dancers(Dataset):
    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        h, w = [(480, 640), (512, 640), (640, 480)][idx % 3]
        people = 1 + idx % 3
        corner = torch.rand(people, 2, generator=g) * torch.tensor([w / 2, h / 2])
        size = 60 + torch.rand(people, 2, generator=g) * torch.tensor([w / 2 - 60, h / 2 - 60])
        boxes = torch.cat([corner, corner + size], 1)
        inside = torch.rand(people, 17, 2, generator=g)
        points = corner[:, None] + inside * size[:, None]
        keypoints = torch.cat([points, torch.ones(people, 17, 1)], 2)
        target = {
            "boxes": boxes,
            "labels": torch.ones(people, dtype=torch.int64),
            "keypoints": keypoints,
            "image_id": idx,
            "area": size.prod(1),
            "iscrowd": torch.zeros(people, dtype=torch.int64),
        }
        return torch.rand(3, h, w, generator=g), target


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader, device, scaler, steps):
    model.train()
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=steps)
    for it, (images, targets) in zip(range(steps), loader):
        images = [image.to(device) for image in images]
        targets = [
            {k: v.to(device) if torch.is_tensor(v) else v for k, v in t.items()} for t in targets
        ]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        value = losses.item()
        if math.isinf(value):
            print(f"Loss is {value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        print(it, {k: round(v.item(), 3) for k, v in loss_dict.items()})


if __name__ == "__main__":
    torch.manual_seed(5)
    device = torch.device("cuda")
    model = keypointrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=2, num_keypoints=17, min_size=512
    )
    model.to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    loader = DataLoader(Dancers(), batch_size=4, shuffle=True, collate_fn=collate_fn)
    train_one_epoch(model, optimizer, loader, device, torch.amp.GradScaler("cuda"), steps=5)
