"""Plants of salt marshes from drone pictures, pixel by pixel.

Data2VecVision with an UperNet head and an auxiliary FCN head, fine-tuned with accelerate in bf16.
The layers' learning rates decay towards the input, as in BEiT's recipe.
"""

import argparse
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import (
    Data2VecVisionConfig,
    Data2VecVisionForSemanticSegmentation,
    get_polynomial_decay_schedule_with_warmup,
)

STEPS = int(os.environ.get("JOB_STEPS", "5"))
PLANTS = 13


class Quadrats(Dataset):
    def __init__(self, count, side):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        coarse = torch.randint(0, PLANTS, (self.side // 64, self.side // 64), generator=g)
        plants = coarse.repeat_interleave(64, 0).repeat_interleave(64, 1)
        picture = torch.randn(3, self.side, self.side, generator=g) * 0.3 + plants / PLANTS
        plants[torch.rand(self.side, self.side, generator=g) < 0.02] = 255
        return {"pixel_values": picture, "labels": plants}


def groups(model, lr, decay, weight_decay):
    layers = model.config.num_hidden_layers
    result = {}
    for name, p in model.named_parameters():
        if "data2vec_vision.embeddings" in name:
            depth = 0
        elif "encoder.layer." in name:
            depth = int(name.split("encoder.layer.")[1].split(".")[0]) + 1
        else:
            depth = layers + 1
        plain = p.ndim == 1 or name.endswith("cls_token")
        key = (depth, plain)
        if key not in result:
            result[key] = {
                "params": [],
                "lr": lr * decay ** (layers + 1 - depth),
                "weight_decay": 0.0 if plain else weight_decay,
            }
        result[key]["params"].append(p)
    return list(result.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-5)
    opts = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16")
    set_seed(5)
    config = Data2VecVisionConfig(
        image_size=opts.side,
        patch_size=16,
        num_labels=PLANTS,
        out_indices=[3, 5, 7, 11],
        use_relative_position_bias=True,
        use_absolute_position_embeddings=False,
        drop_path_rate=0.1,
        auxiliary_loss_weight=0.4,
        semantic_loss_ignore_index=255,
    )
    model = Data2VecVisionForSemanticSegmentation(config)
    optimizer = torch.optim.AdamW(groups(model, opts.lr, 0.9, 0.05), betas=(0.9, 0.999))
    schedule = get_polynomial_decay_schedule_with_warmup(optimizer, 2, 160)
    loader = DataLoader(Quadrats(400, opts.side), opts.batch, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    model.train()
    for step, batch in enumerate(loader):
        if step == STEPS:
            break
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean().item()
        accelerator.print(f"[{step + 1}/{STEPS}] loss={mean:.4f}")

    with tempfile.TemporaryDirectory() as folder:
        accelerator.unwrap_model(model).save_pretrained(folder)


if __name__ == "__main__":
    main()
