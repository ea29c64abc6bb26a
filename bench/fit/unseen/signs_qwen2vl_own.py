"""Road signs read aloud by a small Qwen2-VL: own loop, frozen vision tower, trained merger and language model, bf16 weights, packed patches."""

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

IMAGE, START, END = 15_001, 15_002, 15_003

config = Qwen2VLConfig(
    text_config=dict(
        vocab_size=16_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6},
        use_cache=False,
    ),
    vision_config=dict(
        depth=8, embed_dim=512, hidden_size=1024, num_heads=8, mlp_ratio=4, patch_size=14
    ),
    image_token_id=IMAGE,
    video_token_id=15_004,
    vision_start_token_id=START,
    vision_end_token_id=END,
)
model = Qwen2VLForConditionalGeneration(config).to("cuda", torch.bfloat16)

for name, p in model.named_parameters():
    p.requires_grad = "visual" not in name or "merger" in name
trained = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trained, lr=2e-5, betas=(0.9, 0.98), fused=True)


def sign(grid=(1, 16, 20), words=96):
    t, h, w = grid
    patches = torch.randn(t * h * w, 3 * 2 * 14 * 14)
    holes = t * h * w // 4
    text = torch.randint(0, 15_000, (words,))
    ids = torch.cat([torch.tensor([START]), torch.full((holes,), IMAGE), torch.tensor([END]), text])
    labels = ids.clone()
    labels[: holes + 2] = -100
    return ids, labels, patches, torch.tensor(grid)


for step in range(5):
    ids, labels, patches, grids = zip(*(sign() for _ in range(24)))
    ids = torch.stack(ids)
    out = model(
        input_ids=ids.cuda(),
        attention_mask=torch.ones_like(ids).cuda(),
        mm_token_type_ids=(ids == IMAGE).int().cuda(),
        labels=torch.stack(labels).cuda(),
        pixel_values=torch.cat(patches).cuda().bfloat16(),
        image_grid_thw=torch.stack(grids).cuda(),
    )
    out.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
    opt.step()
    opt.zero_grad()
    print(f"step {step} loss {out.loss.item():.3f} norm {norm.item():.2f}")
