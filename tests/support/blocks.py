"""A model of blocks that draw from every source of random numbers, and its training, on the CPU."""

BLOCKS = """
    import random
    import numpy

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.drop, self.rest = nn.Dropout(0.3), nn.Conv2d(4, 4, 1)

        def forward(self, x, *, scale=1.0):
            h = self.drop(torch.relu(self.norm(self.conv(x))))
            mask = (torch.rand_like(h) > 0.2) & torch.tensor(random.random() > 0.1)
            return x + self.rest(h * mask * scale * (1 + numpy.random.rand())), {"scale": scale}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(4)])

        def forward(self, x):
            for index, block in enumerate(self.blocks):
                x, extra = block(x, scale=1.0 + index)
                assert extra == {"scale": 1.0 + index}
            return x

    random.seed(0)
    numpy.random.seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

TRAIN = """
    losses, gradients = [], []
    for step in range(3):
        x = torch.randn(3, 4, 8, 8)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
        losses.append(loss.detach())
    out = [losses, gradients, list(model.state_dict().values()), torch.rand(3)]
"""

ALL = [f"Net.blocks.{i}" for i in range(4)]
