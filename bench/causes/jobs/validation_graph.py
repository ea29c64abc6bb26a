"""Validation runs with gradients on, in batches that suit a run without."""
import torch
import torchvision


def train(model, optimizer):
    model.train()
    for _ in range(3):
        x, y = torch.randn(8, 3, 160, 160, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(model):
    model.eval()
    correct = 0
    for _ in range(3):
        x = torch.randn(96, 3, 160, 160, device="cuda")
        y = torch.randint(0, 10, (96,), device="cuda")
        correct += (model(x).argmax(1) == y).sum().item()
    return correct


model = torchvision.models.regnet_y_1_6gf(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    train(model, optimizer)
    validate(model)
