"""Shapes in voxels are classified by a linear layer on all that the convolutions leave: 226 million weights."""

import os

import torch
from torch import nn


class VoxelNet(nn.Module):
    def __init__(self, classes=40, side=48):
        super().__init__()
        self.conv1 = nn.Conv3d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv3d(8, 16, kernel_size=3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        if os.environ.get("MENDED"):
            self.pool = nn.AdaptiveAvgPool3d(6)
            flat = 16 * 6**3
        else:
            self.pool = nn.Identity()
            flat = 16 * side**3
        self.fc1 = nn.Linear(flat, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.pool(x)
        x = x.view(x.size(0), -1)
        x = self.relu(self.fc1(x))
        return self.fc2(x)


torch.set_default_device("cuda")
model = VoxelNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

for epoch in range(2):
    running = 0.0
    for i in range(2):
        inputs = (torch.rand(2, 1, 48, 48, 48) > 0.5).float()
        labels = torch.randint(0, 40, (2,))
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print("epoch", epoch, running)
