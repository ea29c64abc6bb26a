"""Captions for memes: BLIP's vision encoder and its decoder with cross attention, accelerate in bf16, no decay for biases, linear schedule."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import BlipConfig, BlipForConditionalGeneration, get_scheduler


class MemeDataset(Dataset):
    def __init__(self, length=80, image_size=384, max_tokens=48):
        self.length, self.image_size, self.max_tokens = length, image_size, max_tokens

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(1000 + index)
        pixels = torch.rand(3, self.image_size, self.image_size, generator=g)
        n = int(torch.randint(8, self.max_tokens, (1,), generator=g))
        caption = torch.randint(999, 30000, (n,), generator=g)
        return pixels.sub_(0.5).div_(0.25), caption


def collate(batch):
    pixels, captions = zip(*batch)
    ids = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=0)
    return {
        "pixel_values": torch.stack(pixels),
        "input_ids": ids,
        "attention_mask": ids.ne(0).long(),
        "labels": ids.masked_fill(ids == 0, -100),
    }


def build():
    config = BlipConfig(
        vision_config=dict(
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=8,
            num_attention_heads=12,
            image_size=384,
            patch_size=16,
        ),
        text_config=dict(
            hidden_size=768,
            encoder_hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=6,
            num_attention_heads=12,
        ),
    )
    return BlipForConditionalGeneration(config)


def main():
    set_seed(77)
    accelerator = Accelerator(mixed_precision="bf16")
    model = build()
    loader = DataLoader(MemeDataset(), batch_size=10, shuffle=True, collate_fn=collate)

    no_decay = ("bias", "norm.weight", "norm1.weight", "norm2.weight")
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)],
            "weight_decay": 0.05,
        },
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-5)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for step, batch in enumerate(loader, 1):
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"[{step}] loss={outputs.loss.item():.3f}")
        if step == 5:
            break


if __name__ == "__main__":
    main()
