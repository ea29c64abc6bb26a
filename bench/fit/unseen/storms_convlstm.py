"""Storms an hour ahead: ConvLSTM over radar frames, encoder and forecaster, weighted MAE and MSE, scheduled sampling, Adam."""

import random

import torch
import torch.nn as nn


class ConvLSTMCell(nn.Module):
    def __init__(self, inp, hidden, kernel=3):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inp + hidden, 4 * hidden, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(4, 4 * hidden)

    def forward(self, x, state):
        if state is None:
            zeros = x.new_zeros(x.shape[0], self.hidden, *x.shape[2:])
            state = (zeros, zeros)
        h, c = state
        i, f, o, g = self.norm(self.gates(torch.cat([x, h], 1))).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class Nowcaster(nn.Module):
    def __init__(self, hidden=(48, 64)):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 4, stride=4)
        self.cells = nn.ModuleList(
            [ConvLSTMCell(i, o) for i, o in zip((16,) + hidden[:-1], hidden)]
        )
        self.out = nn.Sequential(
            nn.ConvTranspose2d(hidden[-1], 16, 4, stride=4), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 1)
        )

    def step(self, frame, states):
        x = self.stem(frame)
        fresh = []
        for cell, state in zip(self.cells, states):
            x, state = cell(x, state)
            fresh.append(state)
        return self.out(x), fresh

    def forward(self, past, future, truth_rate):
        states = [None] * len(self.cells)
        for frame in past.unbind(1):
            guess, states = self.step(frame, states)
        guesses = [guess]
        for t in range(future.shape[1] - 1):
            frame = future[:, t] if random.random() < truth_rate else guess
            guess, states = self.step(frame, states)
            guesses.append(guess)
        return torch.stack(guesses, 1)


def balanced(prediction, truth):
    weight = 1 + 1.0 * (truth > 0.2) + 3.0 * (truth > 0.5) + 25.0 * (truth > 0.75)
    error = prediction - truth
    return (weight * error.abs()).mean() + (weight * error.square()).mean()


def main():
    random.seed(0)
    model = Nowcaster().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    radar = torch.rand(8 * 4, 20, 1, 256, 256)
    for it in range(4):
        clip = radar[8 * it : 8 * it + 8].cuda()
        loss = balanced(model(clip[:, :10], clip[:, 10:], 0.5), clip[:, 10:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 50.0)
        optimizer.step()
        print(it, loss.item())


main()
