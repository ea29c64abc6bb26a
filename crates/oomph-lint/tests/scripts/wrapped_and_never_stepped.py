"""The step is commented out: the wrapped network only runs. And maps of what a network looks at."""
import torch
from medcam import medcam


def main(net, loader):
    net = torch.nn.DataParallel(net).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        adjust_learning_rate(optimizer, 0.1)
        net(x.cuda())
        # optimizer.zero_grad()
        # loss.backward()
        # optimizer.step()


def adjust_learning_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def maps(net, loader):
    net.eval()
    for x in loader:
        _ = net(x.cuda())


def look(build, loader):
    model = build()
    model = medcam.inject(model, backend="gcam")
    maps(model, loader)
