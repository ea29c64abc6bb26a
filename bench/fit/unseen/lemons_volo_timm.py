"""Blemishes of lemons by timm's VOLO (outlook attention): CutMix, label smoothing, AMP, an average of the weights, AdamW."""

import os

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3

STEPS = int(os.environ.get("JOB_STEPS", "5"))
BATCH, CLASSES = 48, 10

torch.manual_seed(21)
torch.backends.cudnn.benchmark = True
device = "cuda"

model = timm.create_model("volo_d1_224", num_classes=CLASSES, drop_path_rate=0.1).to(device)
model = model.to(memory_format=torch.channels_last)
ema = ModelEmaV3(model, decay=0.999)
optimizer = torch.optim.AdamW(param_groups_weight_decay(model, 0.05), lr=5e-4)
scheduler = CosineLRScheduler(
    optimizer, t_initial=100, warmup_t=3, warmup_lr_init=1e-6, t_in_epochs=False
)
mixup = Mixup(mixup_alpha=0.0, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
criterion = SoftTargetCrossEntropy()
meter = AverageMeter()

# all pictures lie on the GPU as bytes, as there are few of them
pool = torch.randint(0, 256, (192, 3, 224, 224), dtype=torch.uint8, device=device)
names = torch.randint(CLASSES, (192,), device=device)


def draw():
    pick = torch.randint(192, (BATCH,), device=device)
    x = (pool[pick].float() - 127.5) / 64
    return mixup(x.contiguous(memory_format=torch.channels_last), names[pick])


for step in range(STEPS):
    model.train()
    x, y = draw()
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step_update(step + 1)
    ema.update(model, step=step)
    meter.update(loss.item(), BATCH)
    print(
        f"step {step} loss {meter.val:.4f} ({meter.avg:.4f}) lr {optimizer.param_groups[0]['lr']:.2e}"
    )

ema.module.eval()
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    pick = torch.arange(BATCH, device=device)
    right = ema.module((pool[pick].float() - 127.5) / 64).argmax(1) == names[pick]
print("average of the weights, right:", right.float().mean().item())
