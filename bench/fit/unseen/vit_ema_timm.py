#!/usr/bin/env python3
"""A stripped-down timm train.py: ViT-S/16, Mixup/CutMix, EMA, stochastic depth, layer decay, bf16."""

import argparse
import logging
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, accuracy, dispatch_clip_grad, random_seed

_logger = logging.getLogger("train")

parser = argparse.ArgumentParser(description="ImageNet training")
parser.add_argument("--model", default="vit_small_patch16_224")
parser.add_argument("-b", "--batch-size", type=int, default=144)
parser.add_argument("--num-classes", type=int, default=1000)
parser.add_argument("--opt", default="adamw")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--layer-decay", type=float, default=0.75)
parser.add_argument("--drop-path", type=float, default=0.1)
parser.add_argument("--clip-grad", type=float, default=5.0)
parser.add_argument("--clip-mode", default="norm")
parser.add_argument("--mixup", type=float, default=0.8)
parser.add_argument("--cutmix", type=float, default=1.0)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--model-ema-decay", type=float, default=0.9998)
parser.add_argument("--amp-dtype", default="bfloat16")
parser.add_argument("--no-amp", action="store_true")
parser.add_argument("--updates", type=int, default=5)
parser.add_argument("--seed", type=int, default=42)


class SyntheticLoader:
    """uint8 on the host, normalised on the device, as timm's PrefetchLoader does."""

    def __init__(self, batch_size, num_classes, length, device, size=224):
        self.batch_size, self.num_classes, self.length = batch_size, num_classes, length
        self.device, self.size = device, size
        self.mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255], device=device)
        self.std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255], device=device)

    def __len__(self):
        return self.length

    def __iter__(self):
        shape = (self.batch_size, 3, self.size, self.size)
        for _ in range(self.length):
            images = torch.randint(0, 256, shape, dtype=torch.uint8)
            target = torch.randint(self.num_classes, (self.batch_size,))
            images = images.to(self.device, non_blocking=True).float()
            images = images.sub_(self.mean.view(1, 3, 1, 1)).div_(self.std.view(1, 3, 1, 1))
            yield images, target.to(self.device, non_blocking=True)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, scheduler, amp, mixup_fn, ema):
    losses_m, top1_m = AverageMeter(), AverageMeter()
    model.train()
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        if mixup_fn is not None:
            input, target = mixup_fn(input, target)
        with amp():
            output = model(input)
            loss = loss_fn(output, target)
        loss.backward()
        if args.clip_grad is not None:
            dispatch_clip_grad(model.parameters(), value=args.clip_grad, mode=args.clip_mode)
        optimizer.step()
        optimizer.zero_grad()
        num_updates += 1
        if ema is not None:
            ema.update(model, step=num_updates)
        losses_m.update(loss.item(), input.size(0))
        top1_m.update(accuracy(output.float(), target.argmax(1))[0].item(), input.size(0))
        scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
        _logger.info("%d [%d/%d] %.3f", epoch, batch_idx, len(loader), losses_m.avg)
    return OrderedDict(loss=losses_m.avg, top1=top1_m.avg)


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = parser.parse_args()
    random_seed(args.seed, 0)
    device = torch.device("cuda")
    model = create_model(
        args.model, pretrained=False, num_classes=args.num_classes, drop_path_rate=args.drop_path
    )
    model.to(device)
    optimizer = create_optimizer_v2(
        model,
        opt=args.opt,
        lr=args.lr,
        weight_decay=args.weight_decay,
        layer_decay=args.layer_decay,
    )
    ema = ModelEmaV3(model, decay=args.model_ema_decay, use_warmup=True)
    amp = (
        suppress
        if args.no_amp
        else partial(torch.autocast, device_type="cuda", dtype=getattr(torch, args.amp_dtype))
    )
    mixup_fn = Mixup(
        mixup_alpha=args.mixup,
        cutmix_alpha=args.cutmix,
        label_smoothing=args.smoothing,
        num_classes=args.num_classes,
    )
    loader = SyntheticLoader(args.batch_size, args.num_classes, args.updates, device)
    scheduler, num_epochs = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=1, updates_per_epoch=len(loader), step_on_epochs=False
    )
    for epoch in range(1):
        metrics = train_one_epoch(
            epoch,
            model,
            loader,
            optimizer,
            SoftTargetCrossEntropy(),
            args,
            scheduler,
            amp,
            mixup_fn,
            ema,
        )
        _logger.info("%s", dict(metrics))


if __name__ == "__main__":
    main()
