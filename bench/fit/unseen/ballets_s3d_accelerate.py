"""Ballet steps by torchvision's S3D on clips of 32 frames under accelerate: fp16, mixup of clips, SGD with OneCycle, accuracy gathered."""

import torch
from accelerate import Accelerator
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchvision.models.video import s3d


class Clips(Dataset):
    def __init__(self, n=40, frames=32, side=224):
        self.n, self.shape = n, (3, frames, side, side)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(self.shape), i % 51


def mixup(x, y, alpha=0.4):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    perm = torch.randperm(x.size(0), device=x.device)
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


def train():
    acc = Accelerator(mixed_precision="fp16")
    net = s3d(weights=None, num_classes=51, dropout=0.3)
    loader = DataLoader(Clips(), batch_size=8, shuffle=True, drop_last=True)
    opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10)
    net, opt, loader, sched = acc.prepare(net, opt, loader, sched)
    criterion = nn.CrossEntropyLoss()
    seen = right = 0
    net.train()
    for clips, labels in loader:
        mixed, a, b, lam = mixup(clips, labels)
        logits = net(mixed)
        loss = lam * criterion(logits, a) + (1 - lam) * criterion(logits, b)
        acc.backward(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
        guesses, truth = acc.gather_for_metrics((logits.argmax(-1), labels))
        right += (guesses == truth).sum().item()
        seen += truth.numel()
    acc.print(f"accuracy {right / seen:.3f}, loss {loss.item():.3f}")


if __name__ == "__main__":
    train()
