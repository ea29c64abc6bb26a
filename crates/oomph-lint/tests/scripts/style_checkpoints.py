"""Checkpoints: what is loaded where, and what is on the GPU by then."""
import copy
import os

import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


def resume(args):
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume)  # OOM505
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    return model, optimizer


def still_on_the_cpu(args):
    model = Net()
    model.load_state_dict(torch.load(args.resume))  # OOM505
    model.to(device)
    return model


def never_moved_here(args):
    model = Net()
    model.load_state_dict(torch.load(args.resume))  # OOM505
    return model


def pretrained(args):
    model = Net().to(device)
    model.load_state_dict(torch.load(args.pretrained_path))
    return model


def restore(model, path):
    model.load_state_dict(torch.load(path))  # OOM505


def on_the_gpu_by_then(path):
    net = Net().cuda()
    reload(net, path)
    return net


def reload(network, path):
    network.load_state_dict(torch.load(path))  # OOM505


def on_the_cpu_by_then(path):
    net = Net()
    reread(net, path)
    return net.cuda()


def reread(network, path):
    network.load_state_dict(torch.load(path))  # OOM505


class Agent:
    def __init__(self):
        self.actor = Net().to(device)
        self.critic = Net()
        self.optimizer = torch.optim.Adam(self.actor.parameters())

    def save(self):
        torch.save(self.actor.state_dict(), "actor.pth")
        torch.save(self.optimizer.state_dict(), "optimizer.pth")

    def load(self):
        self.actor.load_state_dict(torch.load("actor.pth"))  # OOM505
        self.critic.load_state_dict(torch.load("critic.pth"))  # OOM505
        self.optimizer.load_state_dict(torch.load("optimizer.pth"))

    def load_on_the_cpu(self):
        self.actor.load_state_dict(torch.load("actor.pth", map_location="cpu"))

    def load_on_the_gpu(self):
        self.actor.load_state_dict(torch.load("actor.pth", map_location="cuda:0"))  # OOM505


def train(model, loader, optimizer, criterion):
    model = model.to(device)
    best, best_weights = 0.0, None
    for epoch in range(10):
        for x, y in loader:
            loss = criterion(model(x.to(device)), y.to(device))
            optimizer.zero_grad()  # OOM416
            loss.backward()
            optimizer.step()
        if loss.item() < best:
            best_weights = copy.deepcopy(model.state_dict())  # OOM504
            torch.save(model.state_dict(), "best.pth")
    model.load_state_dict(torch.load("best.pth"))  # OOM505
    return best_weights


def same_device(path, where):
    model = Net().to(where)
    model.load_state_dict(torch.load(path, map_location=where))  # OOM505
    return model
