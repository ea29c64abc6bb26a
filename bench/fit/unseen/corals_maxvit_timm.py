"""Species of corals, several in one photo: timm's MaxViT with grid and block attention, asymmetric loss, RandomErasing, bf16 autocast, averaged weights."""

import timm
import torch
from timm.data.random_erasing import RandomErasing
from timm.loss import AsymmetricLossMultiLabel
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
device = torch.device("cuda:0")

model = timm.create_model(
    "maxvit_tiny_tf_224.in1k", pretrained=False, num_classes=61, drop_path_rate=0.2
).to(device)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
criterion = AsymmetricLossMultiLabel(gamma_neg=4, gamma_pos=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05)
scheduler = CosineLRScheduler(
    optimizer, t_initial=40, warmup_t=3, warmup_lr_init=1e-6, t_in_epochs=False
)
erase = RandomErasing(probability=0.25, mode="pixel", device=device)


def photos(batches, batch_size, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        x = torch.randn(batch_size, 3, 224, 224, generator=g)
        y = (torch.rand(batch_size, 61, generator=g) < 0.06).float()
        yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)


losses = AverageMeter()
model.train()
for update, (x, y) in enumerate(photos(5, 24, seed=1)):
    x = erase(x)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(x)
    loss = criterion(logits.float(), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    averaged.update_parameters(model)
    scheduler.step_update(update + 1)
    losses.update(loss.item(), x.size(0))
    print(f"update {update} loss {losses.avg:.4f}")

averaged.eval()
scores = []
with torch.inference_mode():
    for x, y in photos(2, 48, seed=2):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores.append(((averaged(x).sigmoid() > 0.5) == y.bool()).float().mean())
print("accuracy of labels", torch.stack(scores).mean().item())
