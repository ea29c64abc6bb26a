"""Peat bogs in aerial images: MobileViTV2 with its DeepLab head from transformers, accelerate in fp16, rare classes weighted, two micro-batches for a step."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import (
    MobileViTV2Config,
    MobileViTV2ForSemanticSegmentation,
    get_polynomial_decay_schedule_with_warmup,
)

LABELS = ["water", "moss", "heather", "birch", "track", "cut peat", "pool", "grass"]


class BogTiles(Dataset):
    """Tiles with zones of vegetation: thresholds of a smooth random field."""

    def __init__(self, count=1000, side=512):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        field = torch.rand(1, 1, 9, 9, generator=g)
        field = F.interpolate(field, size=(self.side, self.side), mode="bilinear")[0, 0]
        labels = (field * len(LABELS)).long().clamp_(max=len(LABELS) - 1)
        labels[:4] = 255  # the seam of the mosaic is not labelled
        pixels = field.repeat(3, 1, 1)
        return {"pixel_values": pixels, "labels": labels}


def train():
    set_seed(11)
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    config = MobileViTV2Config(
        image_size=512, width_multiplier=1.5, num_labels=len(LABELS), output_stride=16
    )
    model = MobileViTV2ForSemanticSegmentation(config)
    head = [p for n, p in model.named_parameters() if n.startswith("segmentation_head")]
    body = [p for n, p in model.named_parameters() if not n.startswith("segmentation_head")]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": 6e-5}, {"params": head, "lr": 6e-4}], weight_decay=0.01
    )
    scheduler = get_polynomial_decay_schedule_with_warmup(optimizer, 2, 40, power=0.9)
    loader = DataLoader(BogTiles(), batch_size=10, shuffle=True, drop_last=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    weight = torch.tensor([1.0, 0.7, 1.2, 2.0, 4.0, 2.5, 3.0, 0.8], device=accelerator.device)
    model.train()
    done = 0
    for micro, batch in enumerate(loader):
        with accelerator.accumulate(model):
            logits = model(pixel_values=batch["pixel_values"]).logits
            logits = F.interpolate(logits.float(), size=batch["labels"].shape[-2:], mode="bilinear")
            loss = F.cross_entropy(logits, batch["labels"], weight=weight, ignore_index=255)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                done += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"micro {micro}: {loss.item():.4f}")
        if done == 4:
            break


if __name__ == "__main__":
    train()
