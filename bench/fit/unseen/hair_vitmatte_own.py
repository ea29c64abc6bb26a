"""Mattes of hair by ViTMatte (windowed ViTDet backbone, detail capture): own loop, L1 in the unknown band, Laplacian pyramid, cosine restarts."""

import torch
import torch.nn.functional as F
from transformers import VitDetConfig, VitMatteConfig, VitMatteForImageMatting

SIDE = 512


def laplacian_pyramid(x, levels=4):
    out = []
    for _ in range(levels):
        low = F.avg_pool2d(x, 2)
        out.append(x - F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False))
        x = low
    return out


def matte_loss(pred, alpha, trimap):
    unknown = (trimap == 0.5).float()
    band = ((pred - alpha).abs() * unknown).sum() / unknown.sum().clamp_min(1)
    known = ((pred - alpha).abs() * (1 - unknown)).sum() / (1 - unknown).sum().clamp_min(1)
    lap = sum(
        2**i * (a - b).abs().mean()
        for i, (a, b) in enumerate(zip(laplacian_pyramid(pred), laplacian_pyramid(alpha)))
    )
    return band + known + lap


backbone = VitDetConfig(
    hidden_size=384,
    num_attention_heads=6,
    num_hidden_layers=12,
    num_channels=4,
    image_size=SIDE,
    pretrain_image_size=224,
    patch_size=16,
    window_size=14,
    window_block_indices=[0, 1, 3, 4, 6, 7, 9, 10],
    residual_block_indices=[2, 5, 8, 11],
    use_relative_position_embeddings=True,
    out_features=["stage12"],
)
model = VitMatteForImageMatting(
    VitMatteConfig(
        backbone_config=backbone, hidden_size=384, fusion_hidden_sizes=[256, 128, 64, 32]
    )
).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3)

for step in range(5):
    image = torch.rand(4, 3, SIDE, SIDE)
    alpha = torch.rand(4, 1, SIDE, SIDE)
    trimap = torch.where((alpha > 0.2) & (alpha < 0.8), 0.5, alpha.round())
    pixels = torch.cat([image, trimap], 1).cuda()
    alphas = model(pixel_values=pixels).alphas
    loss = matte_loss(alphas, alpha.cuda(), pixels[:, 3:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"{step}: {float(loss):.4f}")
