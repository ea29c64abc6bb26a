"""A small convolutional student learns the features of a large frozen vision transformer, which runs without gradients."""

import torch
import torch.nn.functional as F
from torch import nn


class Teacher(nn.Module):
    def __init__(self, width=1024, depth=20):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        layer = lambda: nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True)  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(depth))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def stage(into, out):
    return nn.Sequential(
        nn.Conv2d(into, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1), nn.BatchNorm2d(out), nn.ReLU()
    )  # fmt: skip


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(stage(3, 64), stage(64, 128), stage(128, 256), stage(256, 512))
        self.head = nn.Linear(512, 1024)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


torch.manual_seed(0)
teacher, student = Teacher().requires_grad_(False).eval().cuda(), Student().cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    images = torch.rand(64, 3, 224, 224, device="cuda")
    with torch.no_grad():
        wanted = teacher(images)
    loss = F.mse_loss(F.normalize(student(images)), F.normalize(wanted))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
