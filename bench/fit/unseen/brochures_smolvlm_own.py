"""Questions about travel brochures: a small SmolVLM from a config, four tiles a page, the vision tower at a lower rate, bf16, own loop."""

import os
import time

import torch
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers import get_cosine_schedule_with_warmup

STEPS = int(os.environ.get("JOB_STEPS", "5"))
IMAGE_TOKEN = 31990
TILE, PATCH, SHUFFLE = 384, 16, 3
PER_TILE = (TILE // PATCH // SHUFFLE) ** 2


def make_model():
    config = SmolVLMConfig(
        image_token_id=IMAGE_TOKEN,
        scale_factor=SHUFFLE,
        pad_token_id=0,
        vision_config=dict(
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            image_size=TILE,
            patch_size=PATCH,
        ),
        text_config=dict(
            model_type="llama",
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=16,
            num_attention_heads=12,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
    )
    return SmolVLMForConditionalGeneration(config)


def pages(batch, tiles=4, question=48, answer=80):
    """Tiles first, then the question; only the answer is scored."""
    while True:
        pixels = torch.rand(batch, tiles, 3, TILE, TILE, device="cuda") * 2 - 1
        text = torch.randint(3, 31000, (batch, question + answer), device="cuda")
        holes = torch.full((batch, tiles * PER_TILE), IMAGE_TOKEN, device="cuda")
        ids = torch.cat([holes, text], dim=1)
        labels = ids.clone()
        labels[:, : tiles * PER_TILE + question] = -100
        yield dict(
            pixel_values=pixels,
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            labels=labels,
        )


def split_parameters(model):
    vision, rest = [], []
    for name, p in model.named_parameters():
        (vision if "vision_model" in name else rest).append(p)
    return vision, rest


def main():
    torch.manual_seed(5)
    device = torch.device("cuda")
    model = make_model().to(device).train()
    # under autocast the tiles come out in bf16 and are written among fp32 embeddings
    model.model.connector.register_forward_hook(lambda module, args, out: out.float())
    vision, rest = split_parameters(model)
    print(f"vision {sum(p.numel() for p in vision):,} rest {sum(p.numel() for p in rest):,}")
    optimizer = torch.optim.AdamW(
        [{"params": vision, "lr": 2e-6}, {"params": rest, "lr": 1e-4}],
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 1000)
    source = pages(batch=16)
    began = time.time()
    for step in range(STEPS):
        batch = next(source)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        print(
            f"step {step} loss {loss.item():.4f} |g| {norm.item():.3f} "
            f"lr {scheduler.get_last_lr()[-1]:.2e} {time.time() - began:.1f}s"
        )


if __name__ == "__main__":
    main()
