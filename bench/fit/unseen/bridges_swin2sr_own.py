"""Old photographs of bridges at twice their size: Swin2SR, L1 and Fourier loss, fp16 with a scaler, PSNR every third step."""

import argparse
import os
import pathlib
import tempfile
import time

import torch
import torch.nn.functional as F
from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution


def pairs(batch, small, generator, device):
    """Girders: random waves, sampled finely, and their average over 2x2 pixels."""
    side = 2 * small
    axis = torch.linspace(0, 1, side)
    waves = torch.rand(batch, 3, 4, generator=generator) * 60
    phase = torch.rand(batch, 3, 4, generator=generator) * 6.28
    x = waves[..., 0:2].sum(-1)[..., None, None] * axis + phase[..., 0, None, None]
    y = waves[..., 2:4].sum(-1)[..., None, None] * axis[:, None] + phase[..., 1, None, None]
    fine = (0.5 + 0.25 * (x.sin() + y.cos())).pin_memory().to(device, non_blocking=True)
    return F.avg_pool2d(fine, 2), fine


def fourier_loss(a, b):
    return (torch.fft.rfft2(a, norm="ortho") - torch.fft.rfft2(b, norm="ortho")).abs().mean()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=int(os.environ.get("JOB_STEPS", 5)))
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--small", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-4)
    return p.parse_args()


def main():
    opt = parse()
    device = torch.device("cuda", 0)
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    config = Swin2SRConfig(
        image_size=opt.small,
        embed_dim=120,
        depths=[4, 4, 4, 4],
        num_heads=[6, 6, 6, 6],
        window_size=8,
        mlp_ratio=2.0,
        upscale=2,
        upsampler="pixelshuffle",
    )
    model = Swin2SRForImageSuperResolution(config).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [50, 80], gamma=0.5)
    scaler = torch.amp.GradScaler("cuda")
    held = pairs(opt.batch, opt.small, generator, device)
    folder = pathlib.Path(tempfile.mkdtemp())

    for step in range(1, opt.steps + 1):
        began = time.perf_counter()
        low, high = pairs(opt.batch, opt.small, generator, device)
        with torch.autocast("cuda", torch.float16):
            guess = model(low).reconstruction
        loss = F.l1_loss(guess.float(), high) + 0.05 * fourier_loss(guess.float(), high)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        print(f"[{step}] loss {loss.item():.4f} in {time.perf_counter() - began:.2f} s")
        if step % 3 == 0:
            model.eval()
            with torch.inference_mode(), torch.autocast("cuda", torch.float16):
                out = model(held[0]).reconstruction.float().clamp(0, 1)
            psnr = -10 * F.mse_loss(out, held[1]).log10()
            model.train()
            print(f"[{step}] PSNR {psnr.item():.2f} dB")
            torch.save({"model": model.state_dict(), "step": step}, folder / "last.pt")


if __name__ == "__main__":
    main()
