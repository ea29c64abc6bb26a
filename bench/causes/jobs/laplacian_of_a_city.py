"""Quarters of a city by the eigenvectors of its streets' Laplacian: all of them, and cuSOLVER's room to work in."""

import os

import torch


def streets(n):
    """The Laplacian of a random network of streets, in place."""
    links = torch.rand(n, n, device="cuda").mul_(10).floor_().eq_(0)
    links.tril_(-1)
    links += links.clone().T
    degree = links.sum(1)
    links.neg_().diagonal().add_(degree)
    return links


def slowest(laplacian, k):
    if os.environ.get("MENDED"):
        q = torch.linalg.qr(torch.randn(len(laplacian), k, device="cuda")).Q
        for _ in range(30):
            q = torch.linalg.qr(20 * q - laplacian @ q).Q
        return q
    values, vectors = torch.linalg.eigh(laplacian)
    return vectors[:, :k].clone()


def quarters(places, k, rounds=5):
    centres = places[:k].clone()
    for _ in range(rounds):
        nearest = torch.cdist(places, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, places)
        centres = sums / torch.bincount(nearest, minlength=k).clamp(1)[:, None]
    return nearest


with torch.inference_mode():
    print(quarters(slowest(streets(10_000), 12), 12).shape)
