"""On Windows, workers import the script again, which takes a main guard: they cannot be started here."""
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

device = torch.device("cuda")
train_loader = DataLoader(ImageFolder("C:/photos/train"), batch_size=8, shuffle=True)
net = torch.nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train_loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(x.to(device)), y.to(device)).backward()
    optimizer.step()
