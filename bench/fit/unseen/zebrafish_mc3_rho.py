"""Behaviour of zebrafish in clips by MC3-18, trained on the clips of each pool that are worth learning (RHO loss)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.video import mc3_18

CLASSES = 14


class Aquarium:
    """Clips as bytes; a fifth of the labels is wrong."""

    def __init__(self, clips, frames, side, seed=0):
        g = torch.Generator().manual_seed(seed)
        shape = (clips, 3, frames, side, side)
        self.clips = torch.randint(256, shape, dtype=torch.uint8, generator=g)
        self.labels = torch.randint(CLASSES, (clips,), generator=g)
        wrong = torch.rand(clips, generator=g) < 0.2
        self.labels[wrong] = torch.randint(CLASSES, (int(wrong.sum()),), generator=g)

    def load(self, index):
        clips = self.clips[index].cuda().float().div_(255).sub_(0.45).div_(0.225)
        return clips, self.labels[index].cuda()


def small_network():
    """A small network of the holdout: what even it cannot fit is noise."""
    return nn.Sequential(
        nn.Conv3d(3, 16, 3, stride=(1, 4, 4), padding=1),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


@torch.no_grad()
def irreducible_losses(network, data, chunk=32):
    losses = []
    for index in torch.arange(len(data.labels)).split(chunk):
        clips, labels = data.load(index)
        losses.append(F.cross_entropy(network(clips), labels, reduction="none"))
    return torch.cat(losses)


@torch.no_grad()
def choose(model, clips, labels, floor, keep):
    model.eval()
    losses = torch.cat(
        [
            F.cross_entropy(model(c), y, reduction="none")
            for c, y in zip(clips.split(24), labels.split(24))
        ]
    )
    model.train()
    return (losses - floor).topk(keep).indices


def main(args):
    torch.manual_seed(args.seed)
    data = Aquarium(160, args.frames, 112)
    floor = irreducible_losses(small_network().cuda().eval(), data)
    model = mc3_18(weights=None, num_classes=CLASSES).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for step in range(args.steps):
        pool = torch.randperm(len(data.labels))[: args.pool]
        clips, labels = data.load(pool)
        best = choose(model, clips, labels, floor[pool.cuda()], args.keep)
        loss = F.cross_entropy(model(clips[best]), labels[best])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pool", type=int, default=72)
    parser.add_argument("--keep", type=int, default=16)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--seed", type=int, default=2)
    main(parser.parse_args())
