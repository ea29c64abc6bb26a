"""One function for training and evaluation, and evaluation in other shapes."""
import numpy as np
import torch
import torch.nn.functional as F

device = torch.device("cuda")


def run_epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    total, correct, n = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)  # OOM201
        loss = F.cross_entropy(out, y)
        if optimizer is not None:
            optimizer.zero_grad()  # OOM416
            loss.backward()
            optimizer.step()
        total += loss.item() * x.size(0)
        correct += (out.argmax(1) == y).sum()
        n += x.size(0)
    return total / n, correct / n


def run_epoch_right(model, loader, optimizer=None):
    train = optimizer is not None
    model.train(train)
    with torch.set_grad_enabled(train):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            if train:
                optimizer.zero_grad()  # OOM416
                loss.backward()
                optimizer.step()


def main(model, train_loader, val_loader, optimizer):
    for epoch in range(10):
        print(run_epoch(model, train_loader, optimizer))
        print(run_epoch(model, val_loader))
        run_epoch_right(model, train_loader, optimizer)
        run_epoch_right(model, val_loader)


def test(model, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        output = model(data)  # OOM201
        test_loss += F.nll_loss(output, target, reduction="sum").item()
        correct += output.argmax(1).eq(target).sum().item()


def evaluate(net, data_iter):
    net.eval()
    for X, y in data_iter:
        X, y = X.to(device), y.to(device)
        print((net(X).argmax(dim=1) == y).float().sum().cpu().item())  # OOM207


def get_acc(model, loader):
    model.eval()
    for x, y in loader:
        x = x.to(device)
        with torch.no_grad():
            print(model(x).argmax(1))


def validate_by_index(model, x_val, batch_size):
    model.eval()
    outs = []
    for i in range(0, len(x_val), batch_size):
        out = model(x_val[i : i + batch_size].to(device))  # OOM201
        outs.append(out.detach().cpu().numpy())
    return np.concatenate(outs)


class Solver:
    def __init__(self, net, train_loader, valid_loader):
        self.net = net.to(device)
        self.train_loader = train_loader
        self.valid_loader = valid_loader
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def train(self):
        for epoch in range(10):
            self.net.train(True)
            epoch_loss = 0.0
            for i, (images, GT) in enumerate(self.train_loader):
                images, GT = images.to(device), GT.to(device)
                SR = torch.sigmoid(self.net(images))
                loss = F.binary_cross_entropy(SR, GT)
                epoch_loss += loss.item()
                self.net.zero_grad()  # OOM416
                loss.backward()
                self.optimizer.step()
            self.net.train(False)
            self.net.eval()
            for i, (images, GT) in enumerate(self.valid_loader):
                images, GT = images.to(device), GT.to(device)
                SR = torch.sigmoid(self.net(images))  # OOM201
                print(SR.mean().item())

    def val(self):
        for images, GT in self.valid_loader:
            images = images.to(device)
            out = self.net(images)  # OOM201
            print(out.mean().item())


def phases(model, dataloaders, optimizer):
    for phase in ["train", "val"]:
        running_loss = 0.0
        if phase == "train":
            model.train()
        else:
            model.eval()
        for inputs, labels in dataloaders[phase]:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)  # OOM201
            loss = F.cross_entropy(outputs, labels)
            if phase == "train":
                loss.backward()
                optimizer.step()
            running_loss += loss.item()
