"""Self-play with a tree search. What the network thinks of each position stays in the tree with its graph."""

import math
import os
import random

import torch
from torch import nn

SIDE = 19


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.one, self.two = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return (x + self.two(self.one(x).relu())).relu()


class Player(nn.Module):
    def __init__(self, c=96, depth=6):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(17, c, 3, padding=1), *(Residual(c) for _ in range(depth))
        )
        self.policy = nn.Sequential(
            nn.Conv2d(c, 2, 1), nn.Flatten(), nn.Linear(2 * SIDE**2, SIDE**2 + 1)
        )
        self.value = nn.Sequential(
            nn.Conv2d(c, 1, 1), nn.Flatten(), nn.Linear(SIDE**2, 1), nn.Tanh()
        )

    def forward(self, boards):
        x = self.body(boards)
        return self.policy(x).softmax(1), self.value(x).squeeze(1)


class Node:
    def __init__(self, board):
        self.board = board
        self.visits, self.children = 0, []
        self.prior = self.value = None

    def pick(self):
        def worth(child):
            return math.sqrt(self.visits) / (1 + child.visits) + random.random()

        return max(self.children, key=worth)


class Search:
    def __init__(self, player, at_once=64):
        self.player, self.at_once = player, at_once
        self.root = Node(torch.zeros(17, SIDE, SIDE))

    def leaves(self):
        for _ in range(self.at_once):
            node = self.root
            while node.children:
                node.visits += 1
                node = node.pick()
            node.visits += 1
            yield node

    def think(self):
        leaves = list(self.leaves())
        boards = torch.stack([leaf.board for leaf in leaves]).cuda()
        with torch.set_grad_enabled(not os.environ.get("MENDED")):
            priors, values = self.player(boards)
        for leaf, prior, value in zip(leaves, priors, values):
            leaf.prior, leaf.value = prior, value
            if not leaf.children:
                leaf.children = [Node(leaf.board) for _ in range(8)]


random.seed(0)
player = Player().cuda().eval()
search = Search(player)
for simulation in range(16):
    search.think()
