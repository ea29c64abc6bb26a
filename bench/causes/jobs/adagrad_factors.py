"""Movies and viewers are factored; Adagrad makes its sums of squares as soon as it is built."""

import os

import torch
from torch import nn

VIEWERS, MOVIES, FACTORS = 1_200_000, 300_000, 128


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.viewers = nn.Embedding(VIEWERS, FACTORS, sparse=True)
        self.movies = nn.Embedding(MOVIES, FACTORS, sparse=True)
        self.viewer_bias = nn.Embedding(VIEWERS, 1, sparse=True)
        self.movie_bias = nn.Embedding(MOVIES, 1, sparse=True)

    def forward(self, viewer, movie):
        dot = (self.viewers(viewer) * self.movies(movie)).sum(-1)
        return dot + self.viewer_bias(viewer).squeeze(-1) + self.movie_bias(movie).squeeze(-1)


model = Factors().to("cuda")
if os.environ.get("MENDED"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
else:
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

for _ in range(5):
    viewer = torch.randint(VIEWERS, (4096,), device="cuda")
    movie = torch.randint(MOVIES, (4096,), device="cuda")
    stars = torch.rand(4096, device="cuda") * 5
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(viewer, movie), stars)
    loss.backward()
    optimizer.step()
