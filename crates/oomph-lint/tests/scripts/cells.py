"""The cells of a course: first on the CPU, then the same on the GPU."""
import torch
import torch.nn as nn

model = nn.Linear(8, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = test_loader = torch.utils.data.DataLoader([])

total = 0
for x, y in train_loader:
    loss = criterion(model(x), y)
    total += loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
for x, y in test_loader:
    print(model(x).argmax(1))

device = torch.device("cuda")
model.train().to(device)

total = 0
for x, y in train_loader:
    x, y = x.to(device), y.to(device)
    loss = criterion(model(x), y)
    total += loss  # OOM101
    optimizer.zero_grad()  # OOM416
    loss.backward()
    optimizer.step()

model.eval()
for x, y in test_loader:
    print(model(x.to(device)).argmax(1))  # OOM207
