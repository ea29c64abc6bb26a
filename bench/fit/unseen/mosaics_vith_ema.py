#!/usr/bin/env python
# Which workshop laid a Roman mosaic? timm's ViT-H/14, all weights trained, layer decay,
# EMA kept on the GPU, batch of 12: the memory is in the weights, not in what flows through them.
import os
import os.path as osp
import tempfile

import timm
import torch
import torch.nn as nn
import torch.utils.data as data
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV2, accuracy

STEPS = int(os.environ.get("JOB_STEPS", "5"))


class Tesserae(data.Dataset):
    """Squares of stone in the colours of a workshop."""

    def __init__(self, workshops=40, n=240, stone=7):
        self.n, self.stone, self.workshops = n, stone, workshops
        gen = torch.Generator().manual_seed(99)
        self.palette = torch.rand(workshops, 8, 3, generator=gen)

    def __getitem__(self, i):
        who = i % self.workshops
        side = 224 // self.stone
        colour = self.palette[who][torch.randint(0, 8, (side, side))].permute(2, 0, 1)
        img = colour.repeat_interleave(self.stone, 1).repeat_interleave(self.stone, 2)
        return (img - 0.5) / 0.5, who

    def __len__(self):
        return self.n


def train_one_epoch(model, ema, loader, opt, sched, mix, loss_fn, steps):
    meter = AverageMeter()
    model.train()
    done = 0
    while done < steps:
        for img, who in loader:
            img, who = mix(img.cuda(), who.cuda())
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(img), who)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            ema.update(model)
            done += 1
            sched.step_update(done)
            meter.update(loss.item(), img.size(0))
            print(f"[{done}] loss {meter.val:.4f} ({meter.avg:.4f})")
            if done == steps:
                break
    return meter.avg


@torch.no_grad()
def validate(model, loader, batches=2):
    model.eval()
    top1 = AverageMeter()
    for k, (img, who) in enumerate(loader):
        if k == batches:
            break
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            out = model(img.cuda())
        top1.update(accuracy(out, who.cuda())[0].item(), img.size(0))
    return top1.avg


def main():
    torch.manual_seed(42)
    classes = 40
    with torch.device("cuda"):
        model = timm.create_model(
            "vit_huge_patch14_224", num_classes=classes, drop_path_rate=0.3, init_values=1e-5
        )
    ema = ModelEmaV2(model, decay=0.9998)
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.8)
    opt = torch.optim.AdamW(groups, lr=2e-4, betas=(0.9, 0.98))
    for g in opt.param_groups:
        g["lr"] = 2e-4 * g.get("lr_scale", 1.0)
    sched = CosineLRScheduler(
        opt, t_initial=300, warmup_t=20, warmup_lr_init=1e-7, t_in_epochs=False
    )
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=classes)

    loader = data.DataLoader(Tesserae(), batch_size=12, shuffle=True, drop_last=True)
    avg = train_one_epoch(model, ema, loader, opt, sched, mix, SoftTargetCrossEntropy(), STEPS)
    print(f"epoch loss {avg:.4f}, EMA top-1 {validate(ema.module, loader):.2f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"head": ema.module.head.state_dict()}, osp.join(tmp, "mosaics.pt"))


if __name__ == "__main__":
    main()
