"""torchvision's ResNet-101 with a new head, fp16 with a scaler, SGD: as in the transfer-learning tutorial, train and val phases."""

import torch
import torch.nn as nn
import torchvision
from torch.optim import lr_scheduler

BATCH, CLASSES, SIZE = 64, 37, 224


class Pets(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.zeros(3, SIZE, SIZE).add_(index / self.n), index % CLASSES


def train_model(model, criterion, optimizer, scheduler, num_epochs=2):
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train() if phase == "train" else model.eval()
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    with torch.autocast("cuda", dtype=torch.float16):
                        outputs = model(inputs)
                        _, preds = torch.max(outputs, 1)
                        loss = criterion(outputs, labels)
                    if phase == "train":
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                        scaler.update()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()
            print(f"{epoch} {phase} loss {running_loss:.4f} acc {running_corrects:.0f}")
    return model


device = torch.device("cuda:0")
dataloaders = {
    "train": torch.utils.data.DataLoader(Pets(BATCH * 4), batch_size=BATCH, shuffle=True),
    "val": torch.utils.data.DataLoader(Pets(BATCH * 2), batch_size=BATCH),
}
with device:
    net = torchvision.models.resnet101(weights=None)
    net.fc = nn.Linear(net.fc.in_features, CLASSES)
optimizer_ft = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
train_model(
    net, nn.CrossEntropyLoss(), optimizer_ft, lr_scheduler.StepLR(optimizer_ft, step_size=7)
)
