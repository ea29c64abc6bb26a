"""Orchids by torchvision's RegNetY-3.2GF: channels_last, bf16 autocast, SGD with Nesterov, no decay for norms and biases, a running average of weights."""

import torch
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2

EPOCH_STEPS = 5
BATCH = 80
CLASSES = 420

# a handful of "photos", cropped and flipped anew for every batch
photos = torch.randint(0, 256, (48, 3, 288, 288), dtype=torch.uint8)
species = torch.randint(0, CLASSES, (48,))
augment = v2.Compose([v2.RandomCrop(256), v2.RandomHorizontalFlip()])
mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1)
std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1)


def draw():
    idx = torch.randint(0, len(photos), (BATCH,))
    x = augment(photos[idx]).cuda(non_blocking=True)
    x = x.to(memory_format=torch.channels_last).float().div_(255).sub_(mean).div_(std)
    return x, species[idx].cuda(non_blocking=True)


with torch.device("cuda"):
    model = torchvision.models.regnet_y_3_2gf(num_classes=CLASSES)
model = model.to(memory_format=torch.channels_last)

decay, no_decay = [], []
for name, p in model.named_parameters():
    (no_decay if p.ndim == 1 else decay).append(p)
opt = torch.optim.SGD(
    [{"params": decay, "weight_decay": 5e-5}, {"params": no_decay, "weight_decay": 0.0}],
    lr=0.4,
    momentum=0.9,
    nesterov=True,
)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9998), use_buffers=True)
warmup = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.01, total_iters=EPOCH_STEPS)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

model.train()
for it in range(EPOCH_STEPS):
    x, y = draw()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
        loss = criterion(out, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    ema.update_parameters(model)
    warmup.step()
    top1 = (out.argmax(1) == y).float().mean()
    print(f"[{it}/{EPOCH_STEPS}] loss {loss.item():.4f} top1 {top1.item():.3f}")
