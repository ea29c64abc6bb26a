import torch
from torch import nn, optim
from torchvision.models import resnet34


def build_model(num_classes):
    net = resnet34(weights=None)
    net.fc = nn.Linear(net.fc.in_features, num_classes)
    return net


def build_optimizer(net, lr):
    return optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)


def train_one_epoch(net, criterion, optimizer, batches, device):
    net.train()
    for i, (images, targets) in enumerate(batches):
        images, targets = images.to(device), targets.to(device)
        output = net(images)
        loss = criterion(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 2 == 0:
            print(i, float(loss))


def main():
    device = torch.device("cuda")
    net = build_model(37).to(device)
    optimizer = build_optimizer(net, 0.05)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    data = torch.utils.data.TensorDataset(
        torch.randn(128, 3, 128, 128), torch.randint(0, 37, (128,))
    )
    batches = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    for epoch in range(2):
        train_one_epoch(net, criterion, optimizer, batches, device)


main()
