"""Cats told apart with timm's MobileNetV3 and center loss: Adam for the net, an SGD for the centers, ReduceLROnPlateau, a test after each epoch, the best checkpoint saved and resumed."""

import os
import tempfile

import timm
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CATS, ALPHA = 1200, 0.003


class CenterLoss(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.num_classes = num_classes
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim))

    def forward(self, x, labels):
        batch_size = x.size(0)
        distmat = (
            x.pow(2).sum(1, keepdim=True).expand(batch_size, self.num_classes)
            + self.centers.pow(2).sum(1, keepdim=True).expand(self.num_classes, batch_size).t()
        )
        distmat = torch.addmm(distmat, x, self.centers.t(), beta=1, alpha=-2)
        classes = torch.arange(self.num_classes, device=x.device)
        mask = labels.unsqueeze(1).eq(classes.expand(batch_size, self.num_classes))
        return (distmat * mask.float()).clamp(min=1e-12, max=1e12).sum() / batch_size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("mobilenetv3_large_100", pretrained=False, num_classes=0)
        self.fc = nn.Linear(self.backbone.head_hidden_size, CATS)

    def forward(self, x):
        features = self.backbone(x)
        return features, self.fc(features)


def cats(n):
    return TensorDataset(torch.rand(n, 3, 224, 224), torch.randint(0, CATS, (n,)))


def train(model, loader, criterion, center_loss, optimizer, optimizer_center):
    model.train()
    for data, target in loader:
        data, target = data.cuda(non_blocking=True), target.cuda(non_blocking=True)
        features, outputs = model(data)
        xent, center = criterion(outputs, target), center_loss(features, target)
        loss = xent + ALPHA * center
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        loss.backward()
        optimizer.step()
        for param in center_loss.parameters():
            param.grad.data *= 1.0 / ALPHA
        optimizer_center.step()
        print(f"  xent {xent.item():.4f} center {center.item():.4f}")


def test(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for data, target in loader:
            _, outputs = model(data.cuda())
            correct += (outputs.argmax(1).cpu() == target).sum().item()
            total += len(target)
    return correct / total


def main():
    torch.manual_seed(1)
    trainset, testset = cats(312), cats(208)
    trainloader = DataLoader(trainset, batch_size=104, shuffle=True, pin_memory=True)
    testloader = DataLoader(testset, batch_size=104)
    model = Net().cuda()
    criterion = nn.CrossEntropyLoss()
    center_loss = CenterLoss(CATS, model.fc.in_features).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-4)
    optimizer_center = torch.optim.SGD(center_loss.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
    best = -1.0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "best.pth.tar")
        for epoch in range(2):
            train(model, trainloader, criterion, center_loss, optimizer, optimizer_center)
            accuracy = test(model, testloader)
            scheduler.step(accuracy)
            print(f"epoch {epoch}: accuracy {accuracy:.4f}, lr {optimizer.param_groups[0]['lr']}")
            if accuracy >= best:
                best = accuracy
                state = {"epoch": epoch, "model": model.state_dict(), "opt": optimizer.state_dict()}
                torch.save(state, path)
        checkpoint = torch.load(path, map_location="cuda")
        model.load_state_dict(checkpoint["model"])
        print(f"best of epoch {checkpoint['epoch']}: {test(model, testloader):.4f}")


if __name__ == "__main__":
    main()
