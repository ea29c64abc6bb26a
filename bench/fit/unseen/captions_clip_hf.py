"""Hugging Face's CLIPModel on pictures and captions; the loss compares all samples of a batch; learning rates by group."""

import torch
from torch.utils.data import DataLoader
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig


def pairs(n):
    for i in range(n):
        yield torch.zeros(3, 224, 224) + i / n, torch.randint(0, 49000, (64,))


def collate(rows):
    pixels, ids = zip(*rows)
    ids = torch.stack(ids)
    ids[:, -1] = 49407
    return {"pixel_values": torch.stack(pixels), "input_ids": ids}


config = CLIPConfig(
    text_config=CLIPTextConfig(num_hidden_layers=8).to_dict(),
    vision_config=CLIPVisionConfig(num_hidden_layers=8, patch_size=16).to_dict(),
)
with torch.device("cuda"):
    model = CLIPModel(config)
towers = [p for n, p in model.named_parameters() if "projection" not in n and n != "logit_scale"]
heads = [p for n, p in model.named_parameters() if "projection" in n or n == "logit_scale"]
optimizer = torch.optim.AdamW([{"params": towers, "lr": 1e-5}, {"params": heads, "lr": 1e-4}])

for batch in DataLoader(list(pairs(320)), batch_size=64, collate_fn=collate):
    batch = {k: v.cuda() for k, v in batch.items()}
    output = model(**batch, return_loss=True)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
    print(output.loss.item(), output.logits_per_image.diag().mean().item())
