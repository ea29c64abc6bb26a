"""A course's script: nothing ever moves to a GPU, so nothing here costs memory of one."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 16), nn.Linear(16, 3), nn.Softmax(dim=1)

    def forward(self, x):
        return self.out(self.b(torch.relu(self.a(x))))


def load(path):
    net = Net()
    net.load_state_dict(torch.load(path))
    return net


x, y = torch.randn(150, 4), torch.randint(0, 3, (150,))
model, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
softmax = nn.Softmax(dim=1)
for epoch in range(100):
    optimizer.zero_grad
    loss = criterion(softmax(model(x)), y)
    loss.backward()
    optimizer.step()
    print(loss.item())
