"""Spins on an endless lattice, by corner transfer matrices. A corner is factored whole in each round, and two of a hundred directions are kept."""

import argparse
import math
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--beta", type=float, default=0.44, help="one over the temperature")
parser.add_argument("--bond", type=int, default=49, help="states of a bond between sites")
parser.add_argument("--keep", type=int, default=128, help="states of a bond between edges")
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--lowrank", action="store_true", help="factor only as much as is kept")
args = parser.parse_args(["--lowrank"] if os.environ.get("MENDED") else [])


def site(beta, bond):
    """The weight of a site between four bonds: a clock of `bond` hands."""
    angle = torch.arange(bond, device="cuda") * (2 * math.pi / bond)
    weights = torch.exp(beta * torch.cos(angle[:, None] - angle[None]))
    values, vectors = torch.linalg.eigh(weights)
    root = vectors * values.clamp(min=0).sqrt()
    return torch.einsum("na,nb,nc,nd->abcd", root, root, root, root)


class Lattice:
    """One corner and one edge: all four are alike, by symmetry."""

    def __init__(self, a, keep):
        self.a, self.keep, bond = a, keep, a.shape[0]
        self.corner = torch.randn(keep, keep, device="cuda") / keep
        self.edge = torch.randn(keep, bond, keep, device="cuda") / keep

    def enlarged(self):
        """The corner with an edge on either side and a site between: (keep · bond)²."""
        x, p = self.edge.shape[:2]
        side = torch.einsum("ipj,jk->ipk", self.edge, self.corner)
        both = torch.einsum("ipk,kql->ilpq", side, self.edge).reshape(x * x, p * p)
        both = both @ self.a.reshape(p * p, p * p)
        return both.view(x, x, p, p).permute(0, 2, 1, 3).reshape(x * p, x * p)

    def directions(self, corner):
        """The strongest ones, as columns."""
        if args.lowrank:
            return torch.svd_lowrank(corner, self.keep, niter=2)[0]
        u, s, _ = torch.linalg.svd(corner)
        return u[:, : self.keep].clone()

    def round(self):
        x, p = self.edge.shape[:2]
        corner = self.enlarged()
        u = self.directions(corner)
        self.corner = u.T @ corner @ u
        del corner
        u = u.view(x, p, -1)
        # An edge grows by a site, and is cut back, a slice of the site at a time.
        slices = [
            torch.einsum("ipj,pqs,iqk,jsl->kl", self.edge, self.a[:, :, r], u, u) for r in range(p)
        ]
        self.edge = torch.stack(slices, 1)
        self.corner /= self.corner.norm()
        self.edge /= self.edge.norm()

    def magnetization(self):
        return (self.corner @ self.corner).trace().item()


with torch.inference_mode():
    lattice = Lattice(site(args.beta, args.bond), args.keep)
    for n in range(args.rounds):
        lattice.round()
        print(n, lattice.magnetization())
