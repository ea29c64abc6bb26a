"""The line after the choice of a device chooses again."""
import torch

args.device = "cpu"
args.device = "cuda" if torch.cuda.is_available() else "cpu"


def restore(net):
    net = net.to(args.device)
    net.load_state_dict(torch.load("net.pt", map_location=args.device))  # OOM505
    return net
