"""An option names the CPU by default, and its help the other devices."""
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
args = parser.parse_args()


def restore(model, path):
    model = model.to(args.device)
    model.load_state_dict(torch.load(path, map_location=args.device))
    model.eval()
    return model(torch.zeros(2, 8)).argmax(1)
