"""timm's Swin-T on plant photos: mixup, label smoothing, layer-wise learning rates, bf16 autocast, timm's own EMA."""

import argparse

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV2
from torch.utils.data import DataLoader, Dataset


class Plants(Dataset):
    def __init__(self, n, classes):
        self.n, self.classes = n, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(3, 224, 224), i % self.classes


def train_one_epoch(model, ema, loader, mixup, criterion, optimizer, device):
    meter = AverageMeter()
    model.train()
    for images, target in loader:
        images, target = images.to(device), target.to(device)
        images, target = mixup(images, target)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        ema.update(model)
        meter.update(loss.item(), images.size(0))
    return meter.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = timm.create_model(
        args.model, pretrained=False, num_classes=args.classes, drop_path_rate=0.2
    )
    model.to(device)
    ema = ModelEmaV2(model, decay=0.9998)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05, layer_decay=0.8)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=args.classes)
    loader = DataLoader(
        Plants(args.batch_size * args.steps, args.classes),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    loss = train_one_epoch(model, ema, loader, mixup, SoftTargetCrossEntropy(), optimizer, device)
    print("loss", loss)


if __name__ == "__main__":
    main()
