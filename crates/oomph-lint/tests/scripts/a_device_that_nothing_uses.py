"""A script that names a GPU and never moves anything there."""
import torch
import torch.nn as nn

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def forward(self, x):
        return torch.log_softmax(self.fc(x), dim=1)


def train(net, train_loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    total = 0
    for x, y in train_loader:
        loss = criterion(torch.softmax(net(x), dim=1), y)
        loss.backward()
        optimizer.step()
        total += loss
    return total
