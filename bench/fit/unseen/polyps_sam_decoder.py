"""Polyps from a box: SAM from a config, its image encoder frozen but for the neck, mask decoder trained with Dice and focal loss, fp16."""

import torch
from transformers import SamConfig, SamModel


def dice(logits, target):
    p = logits.sigmoid().flatten(1)
    t = target.flatten(1)
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def focal(logits, target, alpha=0.8, gamma=2.0):
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (alpha * (1 - (-bce).exp()) ** gamma * bce).mean()


config = SamConfig(
    vision_config=dict(
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        image_size=1024,
        global_attn_indexes=[3],
        mlp_dim=2048,
    )
)
sam = SamModel(config).cuda()
for name, parameter in sam.named_parameters():
    last = "vision_encoder.layers.3" in name or "vision_encoder.neck" in name
    parameter.requires_grad_(last or name.startswith("mask_decoder"))

optimizer = torch.optim.AdamW(
    filter(lambda p: p.requires_grad, sam.parameters()), lr=1e-4, weight_decay=1e-4
)
scaler = torch.amp.GradScaler("cuda")

for iteration in range(5):
    image = torch.randn(2, 3, 1024, 1024, device="cuda")
    box = torch.tensor([[[200.0, 220.0, 700.0, 640.0]]] * 2, device="cuda")
    truth = torch.zeros(2, 256, 256, device="cuda")
    truth[:, 60:150, 55:170] = 1
    with torch.autocast("cuda", dtype=torch.float16):
        out = sam(pixel_values=image, input_boxes=box, multimask_output=False)
    masks = out.pred_masks.float().flatten(0, 2)
    loss = dice(masks, truth) + 20 * focal(masks, truth)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"{iteration} {loss.item():.4f}")
