"""Ripeness of mangoes by timm's NFNet without normalization: adaptive gradient clipping, channels_last, fp16 with GradScaler, SGD with Nesterov."""

import argparse
from contextlib import nullcontext

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import adaptive_clip_grad

p = argparse.ArgumentParser()
p.add_argument("--arch", default="eca_nfnet_l0")
p.add_argument("--batch", type=int, default=96)
p.add_argument("--steps", type=int, default=5)
p.add_argument("--side", type=int, default=224)
p.add_argument("--no-amp", action="store_true")
opts = p.parse_args()

net = timm.create_model(opts.arch, pretrained=False, num_classes=9, drop_path_rate=0.1)
net = net.to("cuda", memory_format=torch.channels_last)
optim = create_optimizer_v2(net, opt="nesterov", lr=0.1, momentum=0.9, weight_decay=2e-5)
sched = CosineLRScheduler(optim, t_initial=opts.steps, warmup_t=1, warmup_lr_init=1e-4)
scaler = torch.amp.GradScaler("cuda", enabled=not opts.no_amp)
loss_fn = LabelSmoothingCrossEntropy(0.1)
cast = nullcontext() if opts.no_amp else torch.autocast("cuda", dtype=torch.float16)

net.train()
for step in range(opts.steps):
    x = torch.randn(opts.batch, 3, opts.side, opts.side).to(
        "cuda", memory_format=torch.channels_last
    )
    y = torch.randint(9, (opts.batch,), device="cuda")
    with cast:
        loss = loss_fn(net(x), y)
    optim.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optim)
    adaptive_clip_grad([q for n, q in net.named_parameters() if "head" not in n], clip_factor=0.02)
    scaler.step(optim)
    scaler.update()
    sched.step(step + 1)
    print("step", step, "loss", round(loss.item(), 4), "scale", scaler.get_scale())
