"""What people like is factored whole: a full decomposition of the ratings, where a few components would do."""

import os

import torch

MENDED = os.environ.get("MENDED")
USERS, FILMS, TASTES = 7000, 6000, 32


def ratings(users, films, each=40):
    """Users rate a few films each, around their mean."""
    table = torch.zeros(users, films, device="cuda")
    seen = torch.randint(0, films, (users, each), device="cuda")
    table.scatter_(1, seen, torch.rand(users, each, device="cuda") * 4 + 1)
    return table - table.sum(1, keepdim=True) / each


def tastes(table):
    if MENDED:
        u, s, v = torch.svd_lowrank(table, q=TASTES)
        return u * s, v
    u, s, vh = torch.linalg.svd(table, full_matrices=False)
    return u[:, :TASTES] * s[:TASTES], vh[:TASTES].T


people, films = tastes(ratings(USERS, FILMS))
print((people[:10] @ films.T).topk(5).indices.shape)
