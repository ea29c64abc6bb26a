"""The cells of a notebook: everything is at the top."""
import torch
import torch.nn.functional as F
from torchvision import datasets, models

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = models.resnet18(pretrained=True)
model = model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader = torch.utils.data.DataLoader(datasets.FakeData(), batch_size=8)
valid_loader = torch.utils.data.DataLoader(datasets.FakeData(), batch_size=8)

train_losses, valid_losses, avg_train_losses = [], [], []
for epoch in range(5):
    train_loss = 0.0
    valid_loss = 0.0
    model.train()
    for data, target in train_loader:
        data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * data.size(0)
        train_losses.append(loss)  # OOM102
    model.eval()
    for data, target in valid_loader:
        data, target = data.cuda(), target.cuda()
        output = model(data)  # OOM201
        loss = F.cross_entropy(output, target)
        valid_loss += loss.item() * data.size(0)
        valid_losses.append(loss.item())

model.load_state_dict(torch.load("model.pt"))  # OOM505
torch.save(model.state_dict(), "model.pt")
