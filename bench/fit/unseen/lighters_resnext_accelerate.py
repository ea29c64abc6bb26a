"""Attributes of collected lighters (brand, metal, era, ...): torchvision's ResNeXt-50, several labels each, accelerate in bf16."""

import math
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import BCEWithLogitsLoss, Linear
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnext50_32x4d

N_STEPS = int(os.environ.get("JOB_STEPS", "5"))
BATCH, ATTRIBUTES = 80, 64


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, ATTRIBUTES, generator=g) < 0.1).float()
    pictures = torch.randint(0, 256, (n, 3, 56, 56), generator=g, dtype=torch.uint8)
    return TensorDataset(pictures, labels)


def prepare(pictures):
    x = pictures.float().div_(255).sub_(0.45).div_(0.225)
    return torch.nn.functional.interpolate(x, size=224, mode="bilinear", align_corners=False)


def evaluate(accelerator, model, loader, loss_fn):
    model.eval()
    total = hits = count = 0.0
    with torch.no_grad():
        for x, y in loader:
            logits = model(prepare(x))
            logits, y = accelerator.gather_for_metrics((logits, y))
            total += loss_fn(logits.float(), y).item()
            hits += ((logits > 0) == (y > 0.5)).float().mean().item()
            count += 1
    model.train()
    return total / count, hits / count


def main():
    set_seed(11)
    accelerator = Accelerator(mixed_precision="bf16", step_scheduler_with_optimizer=False)
    model = resnext50_32x4d(weights=None)
    model.fc = Linear(model.fc.in_features, ATTRIBUTES)
    torch.nn.init.constant_(model.fc.bias, -math.log(9))
    no_decay = [p for p in model.parameters() if p.ndim == 1]
    decay = [p for p in model.parameters() if p.ndim > 1]
    optimizer = SGD(
        [{"params": decay, "weight_decay": 5e-5}, {"params": no_decay, "weight_decay": 0.0}],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    scheduler = OneCycleLR(optimizer, max_lr=0.4, total_steps=N_STEPS + 1)
    loss_fn = BCEWithLogitsLoss(
        pos_weight=torch.full((ATTRIBUTES,), 3.0, device=accelerator.device)
    )
    train = DataLoader(make_data(N_STEPS * BATCH, 0), BATCH, shuffle=True, drop_last=True)
    valid = DataLoader(make_data(BATCH, 1), BATCH)
    model, optimizer, train, valid, scheduler = accelerator.prepare(
        model, optimizer, train, valid, scheduler
    )

    model.train()
    for step, (x, y) in enumerate(train, 1):
        logits = model(prepare(x))
        loss = loss_fn(logits, y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(
            f"{step}/{N_STEPS} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.3f}"
        )
        if step == 3:
            with tempfile.TemporaryDirectory() as where:
                accelerator.save_state(where)
    accelerator.print("valid: loss %.4f, right %.3f" % evaluate(accelerator, model, valid, loss_fn))


main()
