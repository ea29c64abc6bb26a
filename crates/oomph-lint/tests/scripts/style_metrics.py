"""Sums, lists and meters of what has a graph."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")


class Meter:
    """Not called AverageMeter, and does what one does."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total = 0.0
        self.count = 0

    def add(self, value, n=1):
        self.total += value * n
        self.count += n


class Numbers:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value.item())


class History:
    def __init__(self):
        self.values = []

    def push(self, value):
        self.values.append(value)


def meters(model, loader, optimizer):
    losses, numbers, history = Meter(), Numbers(), History()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        losses.add(loss, x.size(0))  # OOM107
        losses.add(loss.item(), x.size(0))
        numbers.add(loss)
        history.push(loss)  # OOM107
        history.push(loss.detach())


class Trainer:
    def __init__(self, model, loader):
        self.model = model.to(device)
        self.loader = loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.total_loss = 0.0
        self.losses = []
        self.log_probs = []

    def step(self, batch):
        x, y = batch[0].to(device), batch[1].to(device)
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()  # OOM416
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self):
        for batch in self.loader:
            loss = self.step(batch)
            self.total_loss += loss  # OOM101
            self.losses.append(loss)  # OOM102

    def train_numbers(self):
        for batch in self.loader:
            self.total_loss += self.step(batch).item()

    def episode(self):
        for batch in self.loader:
            self.log_probs.append(self.model(batch[0].to(device)).log())
        loss = -torch.stack(self.log_probs).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log_probs = []


def dictionary(model, loader, optimizer):
    running = {"ce": 0.0, "l2": 0.0}
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        losses = {"ce": F.cross_entropy(out, y), "l2": out.pow(2).mean()}
        loss = losses["ce"] + losses["l2"]
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        for name, value in losses.items():
            running[name] += value  # OOM101


def dictionary_of_numbers(model, loader, optimizer):
    running = {"ce": 0.0, "l2": 0.0}
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        losses = {"ce": F.cross_entropy(out, y), "l2": out.pow(2).mean()}
        loss = sum(losses.values())
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        for name, value in losses.items():
            running[name] += value.item()


def accuracy_is_fine(model, loader, optimizer):
    correct = 0
    accuracies = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        pred = out.max(1)[1]
        correct += (pred == y).sum()
        accuracies.append((pred == y).float().mean())
    return correct, accuracies


def collected(model, loader, optimizer):
    outputs, losses = [], []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        outputs.append(out)  # OOM103
        losses += [loss]  # OOM102
    return torch.cat(outputs), losses


def smoothed(model, loader, optimizer):
    avg_loss = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        avg_loss = 0.9 * avg_loss + 0.1 * loss  # OOM101


def smoothed_number(model, loader, optimizer):
    avg_loss = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        avg_loss = 0.9 * avg_loss + 0.1 * loss.item()


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.penalty = 0.0
        self.maps = []

    def forward(self, x):
        y = self.fc(x)
        self.penalty += y.pow(2).mean()
        self.maps.append(y)
        return y


class Cleared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.cost = 0.0

    def forward(self, x):
        self.cost = 0.0
        y = self.fc(x)
        self.cost += y.pow(2).mean()
        return y


def hooks(model, loader, optimizer):
    features, kept = [], {}

    def keep(module, inputs, output):
        features.append(output)

    def last(module, inputs, output):
        kept["last"] = output

    model.layer1.register_forward_hook(keep)
    model.layer2.register_forward_hook(last)
    seen = []
    model.layer3.register_forward_hook(lambda m, i, o: seen.append(o))
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
