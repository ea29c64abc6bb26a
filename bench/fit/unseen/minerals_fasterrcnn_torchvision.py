"""Grains of minerals in thin sections: torchvision's Faster R-CNN v2 with a ResNet-50 FPN, its batch norms trained, AMP in fp16, AdamW, four losses printed."""

import argparse

import torch
from torchvision.models.detection import fasterrcnn_resnet50_fpn_v2

MINERALS = 11


def section(seed, side):
    """One photo through the microscope and its grains as boxes (xyxy)."""
    g = torch.Generator().manual_seed(seed)
    n = 12
    corner = torch.rand(n, 2, generator=g) * (side - 140)
    extent = 24 + torch.rand(n, 2, generator=g) * 100
    return (
        torch.rand(3, side, side, generator=g),
        {
            "boxes": torch.cat([corner, corner + extent], 1),
            "labels": torch.randint(1, MINERALS + 1, (n,), generator=g),
        },
    )


def to_gpu(images, targets):
    images = [im.cuda() for im in images]
    targets = [{k: v.cuda() for k, v in t.items()} for t in targets]
    return images, targets


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=4)
    p.add_argument("--batch", type=int, default=3)
    p.add_argument("--side", type=int, default=640)
    p.add_argument("--lr", type=float, default=1e-4)
    return p.parse_args()


def main(args):
    torch.manual_seed(1)
    model = fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=MINERALS + 1,
        min_size=args.side,
        max_size=args.side,
        rpn_pre_nms_top_n_train=1000,
        rpn_post_nms_top_n_train=500,
        box_batch_size_per_image=256,
    ).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    model.train()
    for it in range(args.iterations):
        seeds = range(it * args.batch, (it + 1) * args.batch)
        images, targets = to_gpu(*zip(*(section(s, args.side) for s in seeds)))
        with torch.autocast("cuda", dtype=torch.float16):
            losses = model(images, targets)
            loss = sum(losses.values())
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(it, {k: round(v.item(), 4) for k, v in losses.items()})


main(parse())
