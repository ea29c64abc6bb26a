"""Optical flow: torchvision's RAFT, twelve refinements, the sequence loss, AdamW with OneCycle, batch norm frozen."""

import torch
from torchvision.models.optical_flow import raft_large

GAMMA, MAX_FLOW = 0.8, 400


def sequence_loss(preds, gt, valid):
    mag = gt.pow(2).sum(1).sqrt()
    valid = (valid & (mag < MAX_FLOW)).unsqueeze(1).float()
    loss = 0.0
    for i, flow in enumerate(preds):
        weight = GAMMA ** (len(preds) - i - 1)
        loss = loss + weight * (valid * (flow - gt).abs()).mean()
    return loss


def freeze_bn(model):
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.eval()


def main(steps=6, batch=3, size=(368, 496)):
    torch.manual_seed(1234)
    model = raft_large(weights=None).cuda().train()
    freeze_bn(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4, eps=1e-8)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-4, total_steps=1000, pct_start=0.05, anneal_strategy="linear"
    )
    for step in range(steps):
        first = torch.rand(batch, 3, *size) * 2 - 1
        second = torch.roll(first, (3, 5), (2, 3)) + 0.02 * torch.randn_like(first)
        flow = torch.tensor([5.0, 3.0]).view(1, 2, 1, 1).expand(batch, 2, *size)
        valid = torch.rand(batch, *size) < 0.95
        first, second, flow, valid = (t.cuda() for t in (first, second, flow, valid))
        preds = model(first, second, num_flow_updates=12)
        loss = sequence_loss(preds, flow, valid)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        epe = (preds[-1].detach() - flow).norm(dim=1).mean()
        print(f"step {step} loss {loss.item():.3f} epe {epe.item():.3f}")


if __name__ == "__main__":
    main()
