"""Ripeness of olives in seven ranks by a Sequencer (LSTMs over rows and columns), CORN's loss, ranks drawn evenly."""

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

RANKS = 7


class Olives(Dataset):
    """Photographs whose hue follows the rank; most olives are green."""

    def __init__(self, n):
        weights = torch.tensor([0.35, 0.25, 0.15, 0.1, 0.07, 0.05, 0.03])
        self.ranks = torch.multinomial(weights, n, replacement=True)

    def __len__(self):
        return len(self.ranks)

    def __getitem__(self, i):
        rank = self.ranks[i]
        hue = torch.stack([rank / RANKS, 1 - rank / RANKS, 0.2 * rank / RANKS])
        return hue.view(3, 1, 1) + 0.3 * torch.randn(3, 224, 224), rank


def corn(logits, ranks):
    """Each of the RANKS - 1 tasks, 'more than k', learns from the samples that are at least k."""
    total, seen = logits.new_zeros(()), 0
    for k in range(RANKS - 1):
        part = ranks >= k
        if not part.any():
            continue
        target = (ranks[part] > k).float()
        total = total + F.binary_cross_entropy_with_logits(
            logits[part, k].float(), target, reduction="sum"
        )
        seen += len(target)
    return total / seen


def rank_of(logits):
    return (logits.sigmoid().cumprod(1) > 0.5).sum(1)


def main(batch=40, steps=5):
    torch.manual_seed(17)
    data = Olives(600)
    counts = torch.bincount(data.ranks, minlength=RANKS).clamp(min=1)
    sampler = WeightedRandomSampler((1 / counts)[data.ranks].tolist(), batch * steps)
    loader = DataLoader(data, batch, sampler=sampler, num_workers=1, pin_memory=True)
    model = timm.create_model("sequencer2d_s", num_classes=RANKS - 1, drop_path_rate=0.1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=steps + 1)
    model.train()
    for step, (images, ranks) in enumerate(loader):
        images, ranks = images.cuda(non_blocking=True), ranks.cuda(non_blocking=True)
        logits = model(images)
        loss = corn(logits, ranks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        off = (rank_of(logits.detach()) - ranks).abs().float().mean()
        print(f"step {step}: loss {loss.item():.4f}, off by {off.item():.2f} ranks")


if __name__ == "__main__":
    main()
