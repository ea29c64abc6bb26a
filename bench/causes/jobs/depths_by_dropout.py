"""How sure is a network of the depth of each pixel? Twenty looks at each picture, with dropout, and their spread."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

mended = bool(os.environ.get("MENDED"))


class DilatedDepth(nn.Sequential):
    def __init__(self, c=16):
        layers = [nn.Conv2d(3, c, 3, padding=1), nn.ELU()]
        for d in (1, 2, 4, 8):
            layers += [nn.Conv2d(c, c, 3, padding=d, dilation=d), nn.ELU(), nn.Dropout2d(0.1)]
        super().__init__(*layers, nn.Conv2d(c, 1, 1), nn.Softplus())


@torch.no_grad()
def looks(model, loader, passes=20):
    model.train()  # dropout is on
    by_pass = []
    for _ in range(passes):
        depths = []
        for (pictures,) in loader:
            depth = model(pictures.cuda(non_blocking=True))
            depths.append(depth.cpu() if mended else depth)
        by_pass.append(depths)
    return by_pass


def unsure(by_pass):
    spread = [torch.stack(batch).std(0).mean((1, 2, 3)) for batch in zip(*by_pass)]
    return torch.cat(spread).topk(8).indices.tolist()


pool = TensorDataset(torch.zeros(128, 3, 240, 320))
model = DilatedDepth().cuda()
print("to be labelled next:", unsure(looks(model, DataLoader(pool, batch_size=8))))
