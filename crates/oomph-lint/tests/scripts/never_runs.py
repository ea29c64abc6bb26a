"""A flag that is never set, and the branch for machines without a GPU."""
import torch

from agents import Agent


def main(path, loader):
    use_cuda = False
    agent = Agent(use_cuda=use_cuda)
    if use_cuda:
        agent.model.load_state_dict(torch.load(path, map_location="cuda"))
    else:
        agent.model.load_state_dict(torch.load(path, map_location="cpu"))


def restore(path, net, args):
    if args.use_cuda and args.resume:
        net.load_state_dict(torch.load(path, map_location="cuda"))  # OOM505
    if not args.use_cuda:
        net.eval()
        return net(torch.zeros(1, 2)).argmax(1)
    return net.cuda()
