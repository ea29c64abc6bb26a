import copy

from .model import Hourglass as Hourglass, Stacked

DEFAULTS = {
    "epochs": 2,
    "model": {"stacks": 4, "width": 192, "depth": 4, "landmarks": 24},
    "loss": {"omega": 14.0, "epsilon": 1.0, "gamma": 0.9},
    "optim": {"lr": 5e-4, "decay": 1e-4},
    "data": {"size": 256, "batch": 16, "train": 8, "val": 2},
}


def load_config(overrides):
    cfg = copy.deepcopy(DEFAULTS)
    for item in overrides:
        key, value = item.split("=")
        node = cfg
        *path, last = key.split(".")
        for part in path:
            node = node[part]
        node[last] = type(node[last])(value)
    return cfg


def build_model(cfg):
    return Stacked(**cfg)
