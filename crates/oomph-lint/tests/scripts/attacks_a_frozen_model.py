"""The model is frozen: `backward()` makes the gradient of the input alone."""

import torch
from torch import nn


def saliency(scorer: nn.Module, criterion, x, y):
    scorer.requires_grad_(False)
    x = x.cuda().requires_grad_()
    criterion(scorer(x), y).backward()
    return x.grad
