"""Change of land by satellite: a ResNet-18 learns a Wide ResNet's features and answers through hooks; fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet18, wide_resnet50_2

features = {}


def hook(name):
    def save(module, inputs, output):
        features[name] = output

    return save


class Matcher(nn.Module):
    """1x1 convolutions that bring the student's maps to the teacher's widths."""

    def __init__(self, pairs):
        super().__init__()
        self.maps = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 1), nn.BatchNorm2d(b)) for a, b in pairs]
        )

    def forward(self, student, teacher):
        loss = 0.0
        for m, s, t in zip(self.maps, student, teacher):
            s = m(s)
            loss = loss + F.mse_loss(F.normalize(s.float(), dim=1), F.normalize(t.float(), dim=1))
        return loss


def main():
    torch.manual_seed(0)
    teacher = wide_resnet50_2(num_classes=45).cuda().eval()
    for p in teacher.parameters():
        p.requires_grad_(False)
    student = resnet18(num_classes=45).cuda().train()
    stages = ("layer2", "layer3", "layer4")
    for stage in stages:
        getattr(teacher, stage).register_forward_hook(hook("t." + stage))
        getattr(student, stage).register_forward_hook(hook("s." + stage))
    matcher = Matcher([(128, 512), (256, 1024), (512, 2048)]).cuda()
    optimizer = torch.optim.SGD(
        [*student.parameters(), *matcher.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler("cuda")

    for step in range(8):
        x = torch.randn(96, 3, 256, 256, device="cuda")
        y = torch.randint(0, 45, (96,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            with torch.no_grad():
                soft = teacher(x)
            logits = student(x)
            kd = (
                F.kl_div(
                    F.log_softmax(logits / 4, 1), F.softmax(soft / 4, 1), reduction="batchmean"
                )
                * 16
            )
            hint = matcher(
                [features["s." + s] for s in stages], [features["t." + s] for s in stages]
            )
            loss = F.cross_entropy(logits, y) + 0.9 * kd + 50 * hint
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        features.clear()
        print(f"step {step} loss {loss.item():.3f} hint {float(hint):.4f}")


if __name__ == "__main__":
    main()
