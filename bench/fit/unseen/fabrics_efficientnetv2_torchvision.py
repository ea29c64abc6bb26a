"""Faults in fabrics: torchvision's EfficientNetV2-S, first only its head, then everything with a smaller rate; weighted classes, SGD with Nesterov, plain fp32."""

import torch
import torchvision
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

CLASSES = ["hole", "stain", "thread", "knot", "fold", "good"]


class Fabrics(Dataset):
    """Pictures as bytes, like those a camera above the loom delivers."""

    def __init__(self, n, transform):
        g = torch.Generator().manual_seed(n)
        self.images = torch.randint(0, 256, (16, 3, 320, 320), generator=g, dtype=torch.uint8)
        self.targets = torch.randint(0, len(CLASSES), (n,), generator=g)
        self.transform = transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.transform(self.images[i % 16]), self.targets[i]


train_tf = v2.Compose(
    [
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(288),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
)


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad = flag


def run_epoch(model, loader, criterion, optimizer, device, max_batches):
    model.train()
    total, right, seen = 0.0, 0, 0
    for i, (images, targets) in enumerate(loader):
        if i == max_batches:
            break
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * images.size(0)
        right += (outputs.argmax(1) == targets).sum().item()
        seen += images.size(0)
    return total / seen, right / seen


def main():
    torch.manual_seed(42)
    device = "cuda"
    model = torchvision.models.efficientnet_v2_s(weights=None)
    model.classifier[1] = nn.Linear(model.classifier[1].in_features, len(CLASSES))
    model = model.to(device)
    loader = DataLoader(Fabrics(256, train_tf), batch_size=20, shuffle=True, drop_last=True)
    weight = torch.tensor([4.0, 2.0, 2.0, 3.0, 2.0, 0.5], device=device)
    criterion = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.05)

    print("phase 1: head")
    set_trainable(model.features, False)
    optimizer = optim.SGD(model.classifier.parameters(), lr=0.05, momentum=0.9)
    print(run_epoch(model, loader, criterion, optimizer, device, max_batches=2))

    print("phase 2: all")
    set_trainable(model.features, True)
    optimizer = optim.SGD(
        model.parameters(), lr=0.005, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for epoch in range(2):
        print(epoch, run_epoch(model, loader, criterion, optimizer, device, max_batches=2))
        scheduler.step()


if __name__ == "__main__":
    main()
