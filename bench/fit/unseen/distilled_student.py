"""A DeiT student learns from a large teacher, with a loss on hidden states gathered by hooks."""

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F


class Distiller(nn.Module):
    def __init__(self, temperature=4.0, alpha=0.7):
        super().__init__()
        self.teacher = timm.create_model("resnet101", num_classes=200)
        self.student = timm.create_model("deit_tiny_patch16_224", num_classes=200)
        self.adapt = nn.Linear(self.student.embed_dim, self.teacher.num_features)
        self.t, self.alpha = temperature, alpha
        self.captured = {}
        self.teacher.global_pool.register_forward_hook(self.save("teacher"))
        self.student.norm.register_forward_hook(self.save("student"))
        for p in self.teacher.parameters():
            p.requires_grad = False

    def save(self, key):
        def hook(module, args, output):
            self.captured[key] = output

        return hook

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x, y):
        with torch.no_grad():
            soft = self.teacher(x)
        logits = self.student(x)
        kd = F.kl_div(
            F.log_softmax(logits / self.t, 1), F.softmax(soft / self.t, 1), reduction="batchmean"
        )
        hint = F.mse_loss(self.adapt(self.captured["student"][:, 0]), self.captured["teacher"])
        ce = F.cross_entropy(logits, y)
        self.captured.clear()
        return self.alpha * kd * self.t**2 + (1 - self.alpha) * ce + 0.1 * hint


distiller = Distiller().cuda().train()
params = [p for p in distiller.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=5e-4, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
for epoch in range(5):
    x = torch.randn(64, 3, 224, 224, device="cuda")
    y = torch.randint(0, 200, (64,), device="cuda")
    loss = distiller(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(f"{epoch=} {loss.item()=:.3f}")
