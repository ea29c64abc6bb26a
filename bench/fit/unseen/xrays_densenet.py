"""Fourteen findings on chest X-rays: torchvision DenseNet-121 at 320 px, fp16 with GradScaler, weighted BCE."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchvision import models

FINDINGS = 14


class ChestXray(Dataset):
    def __init__(self, size=192):
        g = torch.Generator().manual_seed(1)
        self.labels = (torch.rand(size, FINDINGS, generator=g) < 0.1).float()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.rand(1, 320, 320).expand(3, -1, -1)
        return (image - 0.45) / 0.22, self.labels[index]


def build_model():
    net = models.densenet121(weights=None)
    net.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(net.classifier.in_features, FINDINGS))
    return net


def run(epochs=1, batch_size=24):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_ds = ChestXray()
    positive = train_ds.labels.mean(0)
    criterion = nn.BCEWithLogitsLoss(pos_weight=((1 - positive) / (positive + 1e-3)).to(device))
    model = build_model().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(train_ds, batch_size=batch_size, shuffle=True)

    for epoch in range(epochs):
        running = 0.0
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.amp.autocast("cuda"):
                logits = model(x)
                loss = criterion(logits, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            running += loss.item()
        print(f"epoch {epoch}: {running / len(loader):.4f}")


run()
