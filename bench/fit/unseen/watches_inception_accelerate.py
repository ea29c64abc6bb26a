"""Watches by maker and by decade with torchvision's Inception v3 and its auxiliary head under accelerate: two outputs, the original RMSprop with eps of one, bf16, clipping."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import inception_v3

MAKERS, DECADES = 140, 12


class Watches(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = torch.empty(3, 299, 299).uniform_(-1, 1)
        return {"image": image, "maker": i * 7 % MAKERS, "decade": i * 5 % DECADES}


class Appraiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = inception_v3(
            weights=None, aux_logits=True, init_weights=False, num_classes=MAKERS + DECADES
        )

    def forward(self, x):
        out = self.net(x)
        return [o.split([MAKERS, DECADES], dim=1) for o in (out.logits, out.aux_logits)]


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=1)
model = Appraiser()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.045, alpha=0.9, eps=1.0, momentum=0.9)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.94)
loader = DataLoader(Watches(384), batch_size=64, shuffle=True, drop_last=True)
model, optimizer, loader, decay = accelerator.prepare(model, optimizer, loader, decay)

criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
model.train()
for epoch in range(1):
    for batch in loader:
        with accelerator.autocast():
            heads = model(batch["image"])
            losses = [
                criterion(maker, batch["maker"]) + 0.5 * criterion(decade, batch["decade"])
                for maker, decade in heads
            ]
            loss = losses[0] + 0.4 * losses[1]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(*(f"{x.item():.3f}" for x in losses))
    decay.step()
