"""Patterns of rugs: timm's DaViT-tiny with attention over windows and over channels, mixup and CutMix, Lion by timm, layer decay, fp16, cosine with warm-up."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import NativeScaler

NUM_CLASSES, BATCH, UPDATES = 84, 48, 5


class RugLoader:
    """Stands in for timm's prefetching loader: uint8 on the host, floats on the GPU."""

    def __init__(self, device):
        self.device = device
        self.store = torch.randint(0, 256, (2 * BATCH, 3, 224, 224), dtype=torch.uint8)
        self.target = torch.randint(0, NUM_CLASSES, (2 * BATCH,))

    def __iter__(self):
        while True:
            idx = torch.randperm(len(self.store))[:BATCH]
            images = self.store[idx].to(self.device, non_blocking=True).float()
            yield images.sub_(127.5).div_(58.0), self.target[idx].to(self.device)


def main():
    device = torch.device("cuda")
    torch.manual_seed(42)
    model = timm.create_model("davit_tiny", num_classes=NUM_CLASSES, drop_path_rate=0.1)
    model = model.to(device)
    optimizer = create_optimizer_v2(model, opt="lion", lr=1e-4, weight_decay=0.5, layer_decay=0.8)
    scheduler = CosineLRScheduler(
        optimizer, t_initial=100, warmup_t=5, warmup_lr_init=1e-6, t_in_epochs=False
    )
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=NUM_CLASSES)
    criterion, scaler = SoftTargetCrossEntropy(), NativeScaler()
    model.train()
    for update, (images, target) in enumerate(RugLoader(device)):
        if update == UPDATES:
            break
        images, soft = mix(images, target)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(images), soft)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, clip_mode="agc", parameters=model.parameters())
        scheduler.step_update(update)
        print(f"Train: [{update}/{UPDATES}]  Loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
