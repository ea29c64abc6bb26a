"""Products and their titles: SigLIP, a sigmoid for every pair, learned temperature and bias, bf16 autocast, own loop."""

import torch
import torch.nn.functional as F
from transformers import SiglipConfig, SiglipModel


def build():
    cfg = SiglipConfig(
        text_config=dict(
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=4,
            num_attention_heads=12,
            max_position_embeddings=64,
        ),
        vision_config=dict(
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=6,
            num_attention_heads=12,
            image_size=256,
            patch_size=16,
        ),
    )
    return SiglipModel(cfg).to("cuda")


def sigmoid_loss(logits):
    n = len(logits)
    sign = 2 * torch.eye(n, device=logits.device) - 1
    return -F.logsigmoid(sign * logits.float()).sum() / n


model = build()
decay, plain = [], []
for p in model.parameters():
    (decay if p.ndim > 1 else plain).append(p)
opt = torch.optim.AdamW(
    [dict(params=decay, weight_decay=1e-4), dict(params=plain, weight_decay=0.0)],
    lr=1e-3,
    betas=(0.9, 0.95),
)

pictures = torch.randint(0, 256, (5, 96, 3, 256, 256), dtype=torch.uint8)
titles = torch.randint(1, 32000, (5, 96, 64))

for step, (x, t) in enumerate(zip(pictures, titles)):
    x = x.cuda(non_blocking=True).float().div_(127.5).sub_(1)
    with torch.autocast("cuda", torch.bfloat16):
        out = model(input_ids=t.cuda(), pixel_values=x)
        loss = sigmoid_loss(out.logits_per_image)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 2 == 0:
        print(step, loss.item())
