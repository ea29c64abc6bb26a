"""DataParallel around what trains, and around what does not."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")


def train(net, loader):
    model = nn.DataParallel(net).to(device)  # OOM701
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def build(net, args):
    if torch.cuda.device_count() > 1:
        net = nn.DataParallel(net)  # OOM701
    return net.to(device)


def sample(net, optimizer):
    net = nn.DataParallel(net).to(device)
    with torch.no_grad():
        print(net(torch.randn(64, 8, device=device)))


def reference(teacher, student, loader):
    teacher = nn.DataParallel(teacher).to(device)
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, y in loader:
        with torch.no_grad():
            t = teacher(x.to(device))
        loss = F.mse_loss(student(x.to(device)), t)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def single(net, loader):
    model = nn.DataParallel(net, device_ids=[0]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
