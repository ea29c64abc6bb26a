"""Truncated backpropagation whose state is never detached."""
import torch
from torch import nn


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.cell = nn.GRUCell(1024, 256)
        self.box = nn.Linear(256, 4)

    def forward(self, frame, state):
        state = self.cell(self.features(frame), state)
        return self.box(state), state


model = Tracker().cuda()
optimizer = torch.optim.Adam(model.parameters())
state = torch.zeros(16, 256, device="cuda")
for frame_number in range(1, 65):
    frame = torch.randn(16, 3, 224, 224, device="cuda")
    box, state = model(frame, state)
    loss = (box - torch.rand_like(box)).abs().mean()
    loss.backward(retain_graph=True)
    if frame_number == 64:
        optimizer.step()
        optimizer.zero_grad()
