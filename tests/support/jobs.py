"""Scripts that several tests run. They do not draw the weights, which nothing reads: that takes longer than the training."""

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    nn.Linear.reset_parameters = lambda self: nn.init.zeros_(self.bias)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

        def forward(self, x):
            return x + self.mlp(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(6))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.zeros(1, 1024).expand(16384 * 4, 1024)), batch_size=16384)
    for (x,) in data:
        x = x.cuda()
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# Little flows through it: the most is needed by the optimizer's step.
WIDE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    nn.Linear.reset_parameters = lambda self: nn.init.zeros_(self.bias)
    model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in DataLoader(TensorDataset(torch.randn(64, 4096), torch.randn(64, 4096)), batch_size=16):
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
