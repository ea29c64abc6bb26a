"""Text-to-image fine-tuning in latent space with Accelerate: frozen VAE, frozen CLIP text model, EMA of the U-Net."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, get_scheduler


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--resolution", type=int, default=512)
    p.add_argument("--train_batch_size", type=int, default=10)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--max_train_steps", type=int, default=4)
    p.add_argument("--learning_rate", type=float, default=1e-5)
    p.add_argument("--snr_gamma", type=float, default=5.0)
    p.add_argument("--ema_decay", type=float, default=0.9999)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


# ---------------------------------------------------------------- VAE (encoder only)
class VaeBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))


class AutoencoderKL(nn.Module):
    def __init__(self, widths=(96, 192, 384, 384), latent=4):
        super().__init__()
        layers, c = [nn.Conv2d(3, widths[0], 3, padding=1)], widths[0]
        for n, w in enumerate(widths):
            layers += [VaeBlock(c, w), VaeBlock(w, w)]
            c = w
            if n < len(widths) - 1:
                layers.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
        self.encoder = nn.Sequential(
            *layers, nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 2 * latent, 3, padding=1)
        )
        self.scaling_factor = 0.18215

    def encode(self, x):
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        return mean + torch.exp(0.5 * logvar.clamp(-30, 20)) * torch.randn_like(mean)


# ---------------------------------------------------------------- U-Net
def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.inp = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.emb = nn.Sequential(nn.SiLU(), nn.Linear(emb, 2 * o))
        self.norm = nn.GroupNorm(32, o)
        self.out = nn.Sequential(nn.SiLU(), nn.Dropout(0.0), nn.Conv2d(o, o, 3, padding=1))
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, emb):
        scale, shift = self.emb(emb)[:, :, None, None].chunk(2, dim=1)
        return self.skip(x) + self.out(self.norm(self.inp(x)) * (1 + scale) + shift)


class CrossAttention(nn.Module):
    def __init__(self, dim, context=None, heads=8):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context or dim, dim, bias=False)
        self.to_v = nn.Linear(context or dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.proj = nn.Linear(dim, inner * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


class SpatialTransformer(nn.Module):
    def __init__(self, dim, context):
        super().__init__()
        self.norm = nn.GroupNorm(32, dim)
        self.proj_in, self.proj_out = nn.Conv2d(dim, dim, 1), nn.Conv2d(dim, dim, 1)
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn1, self.attn2 = CrossAttention(dim), CrossAttention(dim, context)
        self.ff = nn.Sequential(GEGLU(dim, dim * 4), nn.Linear(dim * 4, dim))

    def forward(self, x, context):
        h = self.proj_in(self.norm(x))
        h = h.flatten(2).transpose(1, 2)
        h = h + self.attn1(self.n1(h))
        h = h + self.attn2(self.n2(h), context)
        h = h + self.ff(self.n3(h))
        return x + self.proj_out(h.transpose(1, 2).unflatten(2, x.shape[2:]))


class UNet(nn.Module):
    def __init__(
        self, widths=(224, 448, 672), blocks=1, context=512, attention=(False, True, True)
    ):
        super().__init__()
        emb = widths[0] * 4
        self.time = nn.Sequential(nn.Linear(widths[0], emb), nn.SiLU(), nn.Linear(emb, emb))
        self.conv_in = nn.Conv2d(4, widths[0], 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        c, skips = widths[0], [widths[0]]
        for level, (w, attends) in enumerate(zip(widths, attention)):
            for _ in range(blocks):
                self.downs.append(
                    nn.ModuleList(
                        [
                            ResBlock(c, w, emb),
                            SpatialTransformer(w, context) if attends else nn.Identity(),
                        ]
                    )
                )
                c = w
                skips.append(c)
            if level < len(widths) - 1:
                self.downs.append(nn.ModuleList([nn.Conv2d(c, c, 3, stride=2, padding=1)]))
                skips.append(c)
        self.mid1, self.mid2 = ResBlock(c, c, emb), ResBlock(c, c, emb)
        self.mid_attn = SpatialTransformer(c, context)
        for level, (w, attends) in reversed(list(enumerate(zip(widths, attention)))):
            for n in range(blocks + 1):
                parts = [
                    ResBlock(c + skips.pop(), w, emb),
                    SpatialTransformer(w, context) if attends else nn.Identity(),
                ]
                c = w
                if level and n == blocks:
                    parts.append(nn.Conv2d(c, c, 3, padding=1))
                self.ups.append(nn.ModuleList(parts))
        self.dim = widths[0]
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1))

    @staticmethod
    def attend(block, x, context):
        return block(x, context) if isinstance(block, SpatialTransformer) else block(x)

    def forward(self, sample, timesteps, context):
        emb = self.time(timestep_embedding(timesteps, self.dim))
        x = self.conv_in(sample)
        hs = [x]
        for parts in self.downs:
            if len(parts) == 1:
                x = parts[0](x)
            else:
                x = self.attend(parts[1], parts[0](x, emb), context)
            hs.append(x)
        x = self.mid2(self.mid_attn(self.mid1(x, emb), context), emb)
        for parts in self.ups:
            x = self.attend(parts[1], parts[0](torch.cat([x, hs.pop()], dim=1), emb), context)
            if len(parts) == 3:
                x = parts[2](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(x)


class CaptionedImages(torch.utils.data.Dataset):
    def __init__(self, resolution, n=96):
        self.resolution, self.n = resolution, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "pixel_values": torch.rand(3, self.resolution, self.resolution) * 2 - 1,
            "input_ids": torch.randint(0, 49408, (77,)),
        }


def main():
    args = parse_args()
    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    set_seed(args.seed)
    with accelerator.device:
        text_encoder = CLIPTextModel(
            CLIPTextConfig(
                hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8
            )
        )
        vae, unet = AutoencoderKL(), UNet()
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    ema_unet = copy.deepcopy(unet).requires_grad_(False)

    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate, weight_decay=1e-2)
    dataloader = torch.utils.data.DataLoader(
        CaptionedImages(args.resolution), batch_size=args.train_batch_size, shuffle=True
    )
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)
    unet, optimizer, dataloader, lr_scheduler = accelerator.prepare(
        unet, optimizer, dataloader, lr_scheduler
    )
    vae.to(accelerator.device, dtype=torch.bfloat16)
    text_encoder.to(accelerator.device, dtype=torch.bfloat16)
    ema_unet.to(accelerator.device)

    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=accelerator.device) ** 2
    alphas_cumprod = torch.cumprod(1 - betas, dim=0)

    global_step = 0
    while global_step < args.max_train_steps:
        for batch in dataloader:
            with accelerator.accumulate(unet):
                with torch.no_grad():
                    latents = (
                        vae.encode(batch["pixel_values"].to(torch.bfloat16)) * vae.scaling_factor
                    )
                    context = text_encoder(batch["input_ids"]).last_hidden_state
                noise = torch.randn_like(latents)
                t = torch.randint(0, 1000, (latents.shape[0],), device=latents.device)
                a = alphas_cumprod[t].view(-1, 1, 1, 1)
                noisy = (a.sqrt() * latents + (1 - a).sqrt() * noise).to(latents.dtype)
                pred = unet(noisy, t, context)
                snr = alphas_cumprod[t] / (1 - alphas_cumprod[t])
                weights = torch.clamp(snr, max=args.snr_gamma) / snr
                loss = F.mse_loss(pred.float(), noise.float(), reduction="none")
                loss = (loss.mean(dim=(1, 2, 3)) * weights).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                with torch.no_grad():
                    model = accelerator.unwrap_model(unet)
                    for e, p in zip(ema_unet.parameters(), model.parameters()):
                        e.lerp_(p, 1 - args.ema_decay)
                global_step += 1
                accelerator.print(
                    f"step {global_step} loss {accelerator.gather(loss).mean().item():.4f}"
                )
            if global_step >= args.max_train_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
