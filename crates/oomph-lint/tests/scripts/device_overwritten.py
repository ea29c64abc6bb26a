"""The line after the choice of a device puts the CPU in its place."""
import torch

args.device = "cuda" if torch.cuda.is_available() else "cpu"
args.device = "cpu"  # Faster for a network this small.


def restore(net):
    net = net.to(args.device)
    net.load_state_dict(torch.load("net.pt", map_location=args.device))
    return net
