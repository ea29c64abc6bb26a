"""Depth from one image: HF DPT at 384 px, scale-invariant log loss plus gradients at several scales, two learning rates."""

import torch
import torch.nn.functional as F
from transformers import DPTConfig, DPTForDepthEstimation


def silog(pred, gt, mask, lam=0.85):
    diff = (torch.log(pred + 1e-6) - torch.log(gt)) * mask
    n = mask.sum()
    return torch.sqrt((diff**2).sum() / n - lam * (diff.sum() / n) ** 2 + 1e-6)


def gradient_loss(pred, gt, mask, scales=4):
    total = 0.0
    for s in range(scales):
        step = 2**s
        d = (pred - gt)[:, ::step, ::step] * mask[:, ::step, ::step]
        total = (
            total + (d[:, 1:] - d[:, :-1]).abs().mean() + (d[:, :, 1:] - d[:, :, :-1]).abs().mean()
        )
    return total


def build():
    config = DPTConfig(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        backbone_out_indices=[2, 5, 8, 11],
        neck_hidden_sizes=[96, 192, 384, 768],
        fusion_hidden_size=192,
        image_size=384,
        is_hybrid=False,
    )
    return DPTForDepthEstimation(config)


def main(steps=6, batch=6):
    torch.manual_seed(0)
    net = build().cuda()
    slow, fast = [], []
    for name, p in net.named_parameters():
        (slow if name.startswith("dpt.") else fast).append(p)
    optimizer = torch.optim.AdamW([{"params": slow, "lr": 5e-6}, {"params": fast, "lr": 5e-5}])

    for step in range(steps):
        image = torch.randn(batch, 3, 384, 384, device="cuda")
        gt = torch.rand(batch, 384, 384, device="cuda") * 10 + 0.1
        mask = (torch.rand_like(gt) < 0.8).float()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            depth = net(pixel_values=image).predicted_depth
        depth = F.softplus(depth.float())
        if depth.shape[-2:] != gt.shape[-2:]:
            depth = F.interpolate(depth[:, None], gt.shape[-2:], mode="bilinear")[:, 0]
        loss = silog(depth, gt, mask) + 0.5 * gradient_loss(depth, gt, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"[{step}] {loss.item():.4f}")


if __name__ == "__main__":
    main()
