"""Cloud masks of satellite tiles, as a program with options whose default batch is far too large."""

import argparse
import os

import torch
import torch.nn.functional as F
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


def parse():
    parser = argparse.ArgumentParser(description="train the cloud masker")
    parser.add_argument("--batch-size", type=int, default=2 if os.environ.get("MENDED") else 24)
    parser.add_argument("--tile", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def tiles(args):
    for _ in range(args.iterations):
        image = torch.randn(args.batch_size, 3, args.tile, args.tile)
        mask = torch.randint(0, 4, (args.batch_size, args.tile, args.tile))
        yield image.cuda(), mask.cuda()


def main():
    args = parse()
    net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    for n, (image, mask) in enumerate(tiles(args)):
        loss = F.cross_entropy(net(image)["out"], mask)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print(n, loss.item())


if __name__ == "__main__":
    main()
