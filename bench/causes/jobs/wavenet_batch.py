"""A dilated convolutional model of audio on excerpts that are too long."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.gate = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation, padding=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        a, b = self.gate(x).chunk(2, 1)
        return x + self.out(a.tanh() * b.sigmoid())


model = nn.Sequential(
    nn.Conv1d(1, 64, 1), *[Layer(64, 2 ** (i % 9)) for i in range(18)], nn.Conv1d(64, 30, 1)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    audio = torch.randn(16, 1, 32000, device="cuda")
    loss = model(audio).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
