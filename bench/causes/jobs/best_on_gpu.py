"""The best weights so far are read back to the GPU before training goes on."""
import os
import tempfile

import torch
import torchvision


def load_best(path):
    return torch.load(path, map_location=torch.device("cuda"), weights_only=True)


model = torchvision.models.wide_resnet50_2()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "best.pth")
    torch.save(model.state_dict(), path)
    best = load_best(path)
model.load_state_dict(best)
model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = torch.randn(2, 3, 96, 96, device="cuda"), torch.randint(0, 1000, (2,), device="cuda")
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
