"""Learning without forgetting: each task's learner has the last one as its teacher, who has a teacher, and so on."""

import copy
import os

import torch
from torch import nn
from torch.nn import functional as F


class Learner:
    def __init__(self, width=2048, depth=7):
        body = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
        self.net = nn.Sequential(nn.Linear(512, width), *body).cuda()
        self.heads = {}
        self.teacher = None

    def begin(self, task, classes=10):
        if self.heads:
            if os.environ.get("MENDED"):
                self.teacher = None
            self.teacher = copy.deepcopy(self)
            self.teacher.net.requires_grad_(False).eval()
        self.heads[task] = nn.Linear(2048, classes).cuda()
        weights = [*self.net.parameters(), *self.heads[task].parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=0.01)

    def scores(self, x, task):
        return self.heads[task](self.net(x))

    def learn(self, task, x, y):
        loss = F.cross_entropy(self.scores(x, task), y)
        if self.teacher:
            for old in self.teacher.heads:
                with torch.no_grad():
                    soft = self.teacher.scores(x, old).softmax(1)
                loss = loss + F.cross_entropy(self.scores(x, old), soft)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


learner = Learner()
for task in ("digits", "birds", "cars", "planes", "textures", "flowers", "signs", "food"):
    learner.begin(task)
    for _ in range(2):
        x, y = torch.randn(64, 512, device="cuda"), torch.randint(10, (64,), device="cuda")
        learner.learn(task, x, y)
    print(task)
