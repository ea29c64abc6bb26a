"""ConvNeXt-Large with Adam on small batches: the state does not fit."""
import torch
import torchvision

with torch.device("cuda"):
    net = torchvision.models.convnext_large()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
loss_of = torch.nn.CrossEntropyLoss()
for step in range(3):
    x, y = torch.randn(2, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (2,), device="cuda")
    loss_of(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
