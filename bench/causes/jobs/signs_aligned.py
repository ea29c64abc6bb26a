"""Sign language to words: the alignment of a whole batch is one call of cuDNN's CTC loss, with room for all of it."""

import os
import random

import torch
from torch import nn
from torch.nn.functional import ctc_loss

MOMENTS, WORDS, TOGETHER = 512, 64, 32 if os.environ.get("MENDED") else 576


class Signs(nn.Module):
    def __init__(self, joints=24, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(joints, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 7, padding=3),
            nn.ReLU(), nn.Conv1d(width, WORDS, 1),
        )  # fmt: skip

    def forward(self, joints):
        return self.body(joints).permute(2, 0, 1).log_softmax(-1)


def signers(count):
    joints = torch.randn(count, 24, MOMENTS)
    said = [torch.randint(1, WORDS, (random.randint(70, 110),)) for _ in range(count)]
    return joints.cuda(), said


def whole(numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def align(scores, said):
    loss = 0
    for n in range(0, len(said), TOGETHER):
        some = said[n : n + TOGETHER]
        targets = torch.cat(some).int().cuda()
        moments = whole([MOMENTS] * len(some))
        part = scores[:, n : n + TOGETHER].contiguous()
        loss = loss + ctc_loss(
            part, targets, moments, whole([len(s) for s in some]), reduction="sum"
        )
    return loss / len(said)


random.seed(3)
model = Signs().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(2):
    joints, said = signers(576)
    optimizer.zero_grad()
    align(model(joints), said).backward()
    optimizer.step()
