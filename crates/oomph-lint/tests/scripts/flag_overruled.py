"""A later line overrules what asked for a GPU."""
import torch

use_cuda = torch.cuda.is_available()
use_cuda = False


def score(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        if use_cuda:
            x, y = x.cuda(), y.cuda()
        right += (model(x).argmax(1) == y).sum().item()
    return right


score(torch.nn.Linear(4, 2), [])
