"""timm's ConvNeXt-S as timm's train.py does it: mixup, an average of the weights, channels_last, native amp, LAMB."""

from contextlib import suppress

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import Lamb
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, dispatch_clip_grad


def loader(batches, batch, device):
    for k in range(batches):
        x = torch.empty(batch, 3, 224, 224, device=device).normal_()
        y = torch.randint(0, 200, (batch,), device=device)
        yield x.contiguous(memory_format=torch.channels_last), y


def train_one_epoch(model, batches, optimizer, loss_fn, mixup, ema, scaler, autocast):
    losses = AverageMeter()
    model.train()
    optimizer.zero_grad()
    for idx, (x, y) in enumerate(batches):
        x, y = mixup(x, y)
        with autocast:
            loss = loss_fn(model(x), y)
        if scaler is not None:
            scaler(loss, optimizer, clip_grad=5.0, parameters=model.parameters())
        else:
            loss.backward()
            dispatch_clip_grad(model.parameters(), 5.0)
            optimizer.step()
        optimizer.zero_grad()
        ema.update(model, step=idx)
        losses.update(loss.item(), x.size(0))
    return losses.avg


def main(amp=True):
    device = torch.device("cuda")
    with device:
        model = timm.create_model("convnext_small", num_classes=200, drop_path_rate=0.2)
    model = model.to(memory_format=torch.channels_last)
    ema = ModelEmaV3(model, decay=0.9998)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=200)
    optimizer = Lamb(model.parameters(), lr=2e-3)
    autocast = torch.autocast("cuda", dtype=torch.float16) if amp else suppress()
    scaler = NativeScaler() if amp else None
    loss = train_one_epoch(
        model, loader(5, 48, device), optimizer, SoftTargetCrossEntropy(), mixup, ema, scaler, autocast
    )  # fmt: skip
    print(f"{loss:.3f}")


main()
