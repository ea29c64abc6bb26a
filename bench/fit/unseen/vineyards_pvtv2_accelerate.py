"""Diseases of vine leaves by PVT v2 (B2) under accelerate: full precision, mixup, EMA."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import PvtV2Config, PvtV2ForImageClassification, get_cosine_schedule_with_warmup

STEPS = int(os.environ.get("JOB_STEPS", "5"))
BATCH_SIZE = 96
NUM_CLASSES = 38


class LeafDataset(Dataset):
    """Random crops out of a few large random photographs."""

    def __init__(self, length, size=224):
        g = torch.Generator().manual_seed(0)
        self.photos = torch.randint(0, 256, (8, 3, 640, 640), dtype=torch.uint8, generator=g)
        self.length = length
        self.size = size

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        top, left = torch.randint(0, 640 - self.size, (2,), generator=g).tolist()
        crop = self.photos[idx % 8, :, top : top + self.size, left : left + self.size]
        if idx % 2:
            crop = crop.flip(-1)
        return crop.clone(), idx % NUM_CLASSES


class EMA:
    def __init__(self, model, decay=0.9998):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        params = list(model.state_dict().values())
        for s, p in zip(self.shadow.state_dict().values(), params):
            if s.dtype.is_floating_point:
                s.lerp_(p, 1 - self.decay)
            else:
                s.copy_(p)


def mixup(images, labels, alpha=0.8):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    targets = F.one_hot(labels, NUM_CLASSES).float() * 0.9 + 0.1 / NUM_CLASSES
    images = lam * images + (1 - lam) * images.flip(0)
    targets = lam * targets + (1 - lam) * targets.flip(0)
    return images, targets


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for p in model.parameters():
        (decay if p.ndim > 1 else no_decay).append(p)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    accelerator = Accelerator()
    set_seed(42)
    config = PvtV2Config(
        image_size=224,
        hidden_sizes=[64, 128, 320, 512],
        depths=[3, 4, 6, 3],
        num_attention_heads=[1, 2, 5, 8],
        mlp_ratios=[8, 8, 4, 4],
        drop_path_rate=0.1,
        num_labels=NUM_CLASSES,
    )
    model = PvtV2ForImageClassification(config)
    optimizer = torch.optim.AdamW(param_groups(model, 0.05), lr=5e-4)
    loader = DataLoader(
        LeafDataset(BATCH_SIZE * STEPS), batch_size=BATCH_SIZE, shuffle=True, drop_last=True
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, 20, 3000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ema = EMA(accelerator.unwrap_model(model))
    mean = torch.tensor([0.485, 0.456, 0.406], device=accelerator.device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=accelerator.device).view(1, 3, 1, 1)

    model.train()
    start = time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        images = (images.float() / 255 - mean) / std
        images, targets = mixup(images, labels)
        logits = model(pixel_values=images).logits
        loss = -(targets * F.log_softmax(logits, dim=-1)).sum(-1).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        ema.update(accelerator.unwrap_model(model))
        lr = scheduler.get_last_lr()[0]
        accelerator.print(
            f"[{step + 1}/{STEPS}] loss={loss.item():.4f} lr={lr:.2e} "
            f"t={time.perf_counter() - start:.1f}s"
        )


if __name__ == "__main__":
    main()
