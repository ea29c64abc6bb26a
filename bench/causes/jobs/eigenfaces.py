"""Eigenfaces as in the textbook: all eigenvectors of the covariance of all pixels, of which fifty are used."""

import os

import torch

PIXELS, FACES, KEEP = 100 * 100, 3000, 50


def textbook(faces):
    centred = faces - faces.mean(0)
    covariance = centred.T @ centred / (len(faces) - 1)
    del centred
    values, vectors = torch.linalg.eigh(covariance)
    return vectors[:, -KEEP:].clone()


def randomized(faces):
    return torch.pca_lowrank(faces, q=KEEP)[2]


with torch.no_grad():
    faces = torch.rand(FACES, PIXELS, device="cuda")
    basis = randomized(faces) if os.environ.get("MENDED") else textbook(faces)
    codes = faces @ basis
    print(codes.shape)
