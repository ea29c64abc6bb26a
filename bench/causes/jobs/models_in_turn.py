"""A teacher labels, a student of it stays, and then a judge is loaded: its matrices are as large as the teacher's, whose places are taken in part."""

import os

import torch
from torch import nn


def tower(width, depth, words=2000):
    """Wide layers, loaded straight to the GPU."""
    with torch.device("cuda"):
        return nn.Sequential(
            nn.Embedding(words, width),
            *(m for _ in range(depth) for m in (nn.Linear(width, width, bias=False), nn.ReLU())),
        ).eval()


class Stage:
    """One model of the chain: loaded when it is needed, and let go when it is not."""

    def __init__(self, name, width, depth):
        self.name, self.width, self.depth, self.model = name, width, depth, None

    def __enter__(self):
        print("loading", self.name)
        self.model = tower(self.width, self.depth)
        return self

    def __exit__(self, *_):
        self.model = None
        if os.environ.get("MENDED"):
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def __call__(self, ids):
        return self.model(ids.cuda()).mean(1).cpu()


def texts(batches, batch=8, length=64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(2000, (batch, length), generator=g) for _ in range(batches)]


def label(batches):
    """What the teacher thinks of each text."""
    with Stage("teacher", 4096, 12) as teacher:
        return [teacher(ids) for ids in batches]


def agreement(student, batches, labels):
    """How alike student and teacher are, in the directions that both have."""
    said, wanted = torch.cat([student(ids) for ids in batches]), torch.cat(labels)
    return nn.functional.cosine_similarity(said, wanted[:, : said.shape[1]]).mean().item()


def judge(batches):
    with Stage("judge", 4096, 8) as model:
        return torch.cat([model(ids) for ids in batches]).mean(1)


batches = texts(3)
labels = label(batches)
# The student answers requests from now on, so it stays.
student = Stage("student", 3072, 12).__enter__()
print("agreement", agreement(student, batches, labels))
scores = judge(texts(3, seed=1))
print("judged", tuple(scores.shape))
for ids in texts(2, seed=2):
    print(student(ids).shape)
