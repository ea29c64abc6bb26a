"""Fossils by Perceiver over raw pixels (Fourier positions, 256 latents that look at every pixel) under accelerate: bf16, two batches for a step, LAMB written out in the file."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import PerceiverConfig, PerceiverForImageClassificationFourier


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = state["m"] / (state["v"].sqrt() + group["eps"])
                update += group["weight_decay"] * p
                size, length = p.norm(), update.norm()
                trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
                p.sub_(update * trust * group["lr"])


class Fossils(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.rand(3, 224, 224), i % 45


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
config = PerceiverConfig(
    num_latents=256,
    d_latents=640,
    d_model=261,
    num_blocks=2,
    num_self_attends_per_block=6,
    num_self_attention_heads=8,
    num_cross_attention_heads=1,
    num_labels=45,
)
model = PerceiverForImageClassificationFourier(config)
optimizer = Lamb(model.parameters())
loader = DataLoader(Fossils(), batch_size=6, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

model.train()
for step, (pixels, species) in enumerate(loader):
    with accelerator.accumulate(model):
        out = model(pixel_values=pixels, labels=species)
        accelerator.backward(out.loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(step, out.loss.item())
