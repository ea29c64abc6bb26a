"""Sounds and their descriptions: CLAP's Swin over log-mel patches and a text tower, symmetric softmax, own loop, fp16 with a scaler, text tower at a tenth of the rate."""

import torch
from transformers import ClapConfig, ClapModel

BATCH, WORDS, STEPS = 32, 48, 5
device = "cuda"


def batch():
    """Ten seconds of sound as 1001 frames of 64 mel bands; words padded with 1 as RoBERTa does."""
    mel = torch.randn(BATCH, 1, 1001, 64, device=device)
    ids = torch.randint(4, 50265, (BATCH, WORDS))
    keep = torch.arange(WORDS)[None] < torch.randint(8, WORDS, (BATCH, 1))
    ids = ids.masked_fill(~keep, 1)
    return {
        "input_features": mel,
        "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool, device=device),
        "input_ids": ids.to(device),
        "attention_mask": keep.long().to(device),
    }


torch.manual_seed(0)
cfg = ClapConfig(
    audio_config={"enable_fusion": False, "depths": [2, 2, 6, 2], "patch_embeds_hidden_size": 96},
    text_config={"num_hidden_layers": 6},
)
with torch.device(device):
    model = ClapModel(cfg)

groups = [
    {"params": model.text_model.parameters(), "lr": 1e-5},
    {"params": model.audio_model.parameters(), "lr": 1e-4},
    {
        "params": [
            *model.audio_projection.parameters(),
            *model.text_projection.parameters(),
            model.logit_scale_a,
            model.logit_scale_t,
        ],
        "lr": 1e-3,
    },
]
opt = torch.optim.Adam(groups, betas=(0.9, 0.98), eps=1e-6)
scaler = torch.amp.GradScaler()

model.train()
for step in range(STEPS):
    with torch.amp.autocast("cuda", torch.float16):
        out = model(**batch(), return_loss=True)
    opt.zero_grad()
    scaler.scale(out.loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    with torch.no_grad():  # as CLIP: never above 100
        model.logit_scale_a.clamp_(0, 4.6052)
        model.logit_scale_t.clamp_(0, 4.6052)
    print(step, float(out.loss), float(norm))
