"""Torchvision's Faster R-CNN on pictures of several sizes; targets are lists of dictionaries."""

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    sizes = [(320, 416), (352, 480), (384, 384), (320, 512)]

    def __len__(self):
        return 12

    def __getitem__(self, idx):
        h, w = self.sizes[idx % 4]
        n = 3 + idx % 5
        xy = torch.rand(n, 2) * torch.tensor([w * 0.5, h * 0.5])
        wh = 20 + torch.rand(n, 2) * torch.tensor([w * 0.4, h * 0.4])
        target = {
            "boxes": torch.cat([xy, xy + wh], 1),
            "labels": torch.randint(1, 21, (n,)),
            "image_id": idx,
        }
        return torch.rand(3, h, w), target


def collate(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader, device):
    model.train()
    for images, targets in loader:
        images = [img.to(device) for img in images]
        targets = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()}
            for t in targets
        ]
        loss_dict = model(images, targets)
        losses = sum(loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        print({k: round(v.item(), 3) for k, v in loss_dict.items()})


device = torch.device("cuda")
model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=21, min_size=400, max_size=640
).to(device)
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
train_one_epoch(model, optimizer, DataLoader(Boxes(), 3, collate_fn=collate), device)
