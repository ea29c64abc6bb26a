"""DeepLab with an auxiliary head; poly schedule; outputs are an ordered dictionary."""

import torch
from torch import nn
from torchvision.models.segmentation import deeplabv3_resnet50

CLASSES, CROP, BATCH, ITERS = 19, (384, 512), 4, 5


def fake_batch():
    x = torch.randn(BATCH, 3, *CROP)
    y = torch.randint(0, CLASSES, (BATCH, *CROP))
    y[torch.rand(y.shape) < 0.05] = 255
    return x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


def criterion(outputs, target):
    losses = {
        k: nn.functional.cross_entropy(v, target, ignore_index=255) for k, v in outputs.items()
    }
    return losses["out"] + 0.4 * losses["aux"]


model = deeplabv3_resnet50(
    weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=True
).cuda()
for m in model.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.momentum = 0.01
backbone = [p for p in model.backbone.parameters()]
heads = [*model.classifier.parameters(), *model.aux_classifier.parameters()]
opt = torch.optim.SGD(
    [{"params": backbone, "lr": 1e-3}, {"params": heads, "lr": 1e-2}], momentum=0.9
)
poly = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=ITERS, power=0.9)
confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.int64, device="cuda")
for it in range(ITERS):
    x, y = fake_batch()
    out = model(x)
    loss = criterion(out, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    poly.step()
    with torch.no_grad():
        pred, mask = out["out"].argmax(1), y != 255
        pairs = y[mask] * CLASSES + pred[mask]
        confusion += torch.bincount(pairs, minlength=CLASSES**2)[: CLASSES**2].view(
            CLASSES, CLASSES
        )
    print(it, loss.item())
