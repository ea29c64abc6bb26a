"""Can this timetable be made? NeuroSAT: literals and clauses of a formula send each other messages for many rounds, one bit of supervision at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Formulas:
    adjacency: torch.Tensor  # sparse, literals x clauses
    backward: torch.Tensor  # its transpose
    satisfiable: torch.Tensor
    n_vars: int
    n_clauses: int

    @property
    def n_problems(self):
        return len(self.satisfiable)


def sample(problems: int, n_vars: int, n_clauses: int, width: int = 3) -> Formulas:
    """All literals first x, then not x, over all problems; random clauses near the threshold."""
    total_vars, total_clauses = problems * n_vars, problems * n_clauses
    var = torch.randint(0, n_vars, (problems, n_clauses, width))
    var += torch.arange(problems)[:, None, None] * n_vars
    negated = torch.randint(0, 2, var.shape)
    literal = (var + negated * total_vars).flatten()
    clause = torch.arange(total_clauses).repeat_interleave(width)
    ones = torch.ones(len(literal))
    a = torch.sparse_coo_tensor(
        torch.stack([literal, clause]), ones, (2 * total_vars, total_clauses)
    )
    t = torch.sparse_coo_tensor(
        torch.stack([clause, literal]), ones, (total_clauses, 2 * total_vars)
    )
    label = torch.randint(0, 2, (problems,)).float()
    return Formulas(
        a.coalesce().cuda(), t.coalesce().cuda(), label.cuda(), total_vars, total_clauses
    )


def mlp(d_in, d, d_out):
    return nn.Sequential(
        nn.Linear(d_in, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d_out)
    )


class NormedLSTMCell(nn.Module):
    """LSTM with layer norm on each gate and on the cell, as in the paper."""

    def __init__(self, d_in, d):
        super().__init__()
        self.gates = nn.Linear(d_in + d, 4 * d, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(5))

    def forward(self, x, state):
        h, c = state
        i, j, f, o = (
            n(g) for n, g in zip(self.norms, self.gates(torch.cat([x, h], 1)).chunk(4, 1))
        )
        c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(j)
        return torch.sigmoid(o) * torch.tanh(self.norms[4](c)), c


class Spread(torch.autograd.Function):
    """Sparse times dense where the transpose is at hand."""

    @staticmethod
    def forward(ctx, a, a_t, x):
        ctx.a_t = a_t
        return torch.sparse.mm(a, x)

    @staticmethod
    def backward(ctx, g):
        return None, None, torch.sparse.mm(ctx.a_t, g.contiguous())


class NeuroSAT(nn.Module):
    def __init__(self, d=128, rounds=16):
        super().__init__()
        self.d, self.rounds = d, rounds
        self.l_init, self.c_init = nn.Parameter(torch.randn(1, d)), nn.Parameter(torch.randn(1, d))
        self.l_msg, self.c_msg = mlp(d, d, d), mlp(d, d, d)
        self.l_update, self.c_update = NormedLSTMCell(2 * d, d), NormedLSTMCell(d, d)
        self.vote = mlp(d, d, 1)

    def forward(self, f: Formulas):
        n_lits = 2 * f.n_vars
        lit = (
            self.l_init.expand(n_lits, -1) / self.d**0.5,
            torch.zeros(n_lits, self.d, device="cuda"),
        )
        cla = (
            self.c_init.expand(f.n_clauses, -1) / self.d**0.5,
            torch.zeros(f.n_clauses, self.d, device="cuda"),
        )
        for _ in range(self.rounds):
            to_clauses = Spread.apply(f.backward, f.adjacency, self.l_msg(lit[0]))
            cla = self.c_update(to_clauses, cla)
            to_literals = Spread.apply(f.adjacency, f.backward, self.c_msg(cla[0]))
            flipped = torch.cat([lit[0][f.n_vars :], lit[0][: f.n_vars]])
            lit = self.l_update(torch.cat([to_literals, flipped], 1), lit)
        votes = self.vote(lit[0]).view(2, f.n_problems, -1)
        return votes.mean((0, 2))


def train(steps=12, problems=32, n_vars=150, ratio=4.26):
    torch.manual_seed(99)
    model = NeuroSAT().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, weight_decay=1e-10)
    loss_fn = nn.BCEWithLogitsLoss()
    right = seen = 0
    for step in range(1, steps + 1):
        began = time.time()
        batch = sample(problems, n_vars, int(n_vars * ratio))
        logits = model(batch)
        loss = loss_fn(logits, batch.satisfiable)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.65)
        optimizer.step()
        right += ((logits > 0) == (batch.satisfiable > 0.5)).sum().item()
        seen += problems
        print(
            f"step {step} loss {loss.item():.4f} accuracy {right / seen:.2%} {time.time() - began:.2f} s"
        )


if __name__ == "__main__":
    train()
