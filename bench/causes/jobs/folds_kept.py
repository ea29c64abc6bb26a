"""Cross-validation keeps the model and the optimizer of every fold."""
import torch
import torchvision


def fit(fold):
    model = torchvision.models.shufflenet_v2_x2_0(num_classes=10).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        x, y = torch.randn(2, 3, 64, 64, device="cuda"), torch.randint(0, 10, (2,), device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer


folds = {}
for fold in range(20):
    folds[fold] = fit(fold)
