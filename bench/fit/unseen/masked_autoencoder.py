"""A masked autoencoder: the encoder sees a quarter of the patches, the decoder makes them all."""

import torch
import torch.nn as nn
from timm.models.vision_transformer import Block, PatchEmbed


class MAE(nn.Module):
    def __init__(self, size=224, patch=16, dim=768, depth=8, dec_dim=384, dec_depth=4):
        super().__init__()
        self.patch_embed = PatchEmbed(size, patch, 3, dim)
        n = self.patch_embed.num_patches
        self.patch = patch
        self.pos = nn.Parameter(torch.zeros(1, n, dim), requires_grad=False)
        self.dec_pos = nn.Parameter(torch.zeros(1, n, dec_dim), requires_grad=False)
        self.blocks = nn.ModuleList([Block(dim, 12, 4.0, qkv_bias=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.to_dec = nn.Linear(dim, dec_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dec_dim))
        self.dec = nn.ModuleList([Block(dec_dim, 6, 4.0, qkv_bias=True) for _ in range(dec_depth)])
        self.dec_norm = nn.LayerNorm(dec_dim)
        self.pred = nn.Linear(dec_dim, patch**2 * 3)

    def patchify(self, imgs):
        n, c, h, w = imgs.shape
        p = self.patch
        x = imgs.reshape(n, c, h // p, p, w // p, p)
        return torch.einsum("nchpwq->nhwpqc", x).reshape(n, -1, p * p * c)

    def random_masking(self, x, ratio):
        n, length, d = x.shape
        keep = int(length * (1 - ratio))
        order = torch.rand(n, length, device=x.device).argsort(1)
        restore = order.argsort(1)
        visible = order[:, :keep]
        mask = torch.ones(n, length, device=x.device)
        mask[:, :keep] = 0
        return (
            x.gather(1, visible.unsqueeze(-1).expand(-1, -1, d)),
            mask.gather(1, restore),
            restore,
        )

    def forward(self, imgs, ratio=0.75):
        x = self.patch_embed(imgs) + self.pos
        x, mask, restore = self.random_masking(x, ratio)
        for blk in self.blocks:
            x = blk(x)
        x = self.to_dec(self.norm(x))
        fill = self.mask_token.expand(len(x), restore.shape[1] - x.shape[1], -1)
        x = torch.cat([x, fill], 1)
        x = x.gather(1, restore.unsqueeze(-1).expand(-1, -1, x.shape[2])) + self.dec_pos
        for blk in self.dec:
            x = blk(x)
        pred = self.pred(self.dec_norm(x))
        target = self.patchify(imgs)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        loss = ((pred - (target - mean) / (var + 1e-6).sqrt()) ** 2).mean(-1)
        return (loss * mask).sum() / mask.sum(), pred, mask


def data_iter(batch, n):
    for _ in range(n):
        yield torch.rand(batch, 3, 224, 224)


model = MAE().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), foreach=False)
for it, samples in enumerate(data_iter(64, 5)):
    samples = samples.to("cuda", non_blocking=True)
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        loss, _, _ = model(samples)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("it", it, "loss", loss.item())
