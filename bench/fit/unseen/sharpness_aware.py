"""SAM over a Wide ResNet: two passes for each step."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(
            torch.stack([p.grad.norm(2) for g in self.param_groups for p in g["params"]]), p=2
        )
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError("SAM needs first_step and second_step")


class Basic(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.drop = nn.Dropout(0.1)
        same = cin == cout and stride == 1
        self.shortcut = None if same else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        o = torch.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(o)
        o = self.conv2(self.drop(torch.relu(self.bn2(self.conv1(o)))))
        return o + skip


def wide_resnet(depth=16, k=8, classes=100):
    n, widths, cin = (depth - 4) // 6, (16 * k, 32 * k, 64 * k), 16
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    for i, w in enumerate(widths):
        for j in range(n):
            layers.append(Basic(cin, w, 2 if i and not j else 1))
            cin = w
    layers += [nn.BatchNorm2d(cin), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(cin, classes))


class Cifar(Dataset):
    def __len__(self):
        return 128 * 5

    def __getitem__(self, i):
        return torch.randn(3, 32, 32), i % 100


model = wide_resnet().cuda()
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for inputs, targets in DataLoader(Cifar(), batch_size=128, num_workers=0):
    inputs, targets = inputs.cuda(), targets.cuda()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.first_step(zero_grad=True)
    criterion(model(inputs), targets).backward()
    optimizer.second_step(zero_grad=True)
    print(loss.item())
