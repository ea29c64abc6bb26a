"""Python 2: no PyTorch that runs it frees gradients in `zero_grad()`."""
import torch


def fit(net, optimizer, losses, loader):
    net.cuda()
    for x in loader:
        out = net(x.cuda())
        parts = {name: loss(out) for name, loss in losses.iteritems()}
        optimizer.zero_grad()
        parts["all"].backward()
        optimizer.step()
