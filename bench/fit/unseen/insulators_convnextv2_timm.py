"""Faulty insulators with timm's ConvNeXt V2: channels_last, fp16, layer decay, mixup by hand."""

import timm
import timm.optim
import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True


def mixup(x, y, classes, alpha=0.8):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(len(x), device=x.device)
    target = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[perm], lam * target + (1 - lam) * target[perm]


class Trainer:
    def __init__(self, name="convnextv2_tiny", classes=25, lr=1e-4):
        self.classes = classes
        self.model = timm.create_model(name, num_classes=classes, drop_path_rate=0.1)
        self.model = self.model.cuda().to(memory_format=torch.channels_last)
        self.opt = timm.optim.create_optimizer_v2(
            self.model, opt="adamw", lr=lr, weight_decay=0.05, layer_decay=0.75
        )
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)

    def step(self, x, y):
        x = x.cuda().to(memory_format=torch.channels_last)
        x, target = mixup(x, y.cuda(), self.classes)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), target)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.detach()


if __name__ == "__main__":
    torch.manual_seed(42)
    t = Trainer()
    for i in range(8):
        loss = t.step(torch.randn(48, 3, 224, 224), torch.randint(0, 25, (48,)))
        print(f"[{i}] {loss.item():.4f}")
