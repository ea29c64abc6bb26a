"""A program that never names another place than main memory."""
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def forward(self, x):
        return x


def evaluate(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean()


def train(model, train_loader, optimizer):
    total, losses = 0.0, []
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
        losses.append(loss)
    return total, losses


if __name__ == "__main__":
    net = Net()
    train(net, [], torch.optim.SGD(net.parameters(), lr=0.1))
    print(evaluate(net, torch.zeros(1, 2), torch.zeros(1)))
