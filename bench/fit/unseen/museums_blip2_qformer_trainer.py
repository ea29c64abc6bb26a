"""Second stage of BLIP-2 on museum objects: the image tower and the language model stay frozen, only the Q-Former, its
query tokens and the projection learn, by the captioning loss through the frozen decoder. Trainer, bf16."""

import torch
from torch.utils.data import Dataset
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    OPTConfig,
    Trainer,
    TrainingArguments,
    set_seed,
)

QUERIES, IMAGE_TOKEN, PAD, EOS = 32, 50265, 1, 2
BATCH, ACCUMULATE, STEPS = 24, 2, 3


class Objects(Dataset):
    """Photographs and catalogue texts of 12 to 60 tokens."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(12, 60, (1,), generator=g))
        image = torch.randn(3, 1, 1, generator=g) + 0.3 * torch.randn(3, 224, 224, generator=g)
        return {"image": image, "caption": torch.randint(4, 50000, (length,), generator=g).tolist()}


class Collator:
    def __init__(self, prompt=(2, 102, 1345, 9)):
        self.prompt = list(prompt)

    def __call__(self, items):
        rows = [[IMAGE_TOKEN] * QUERIES + self.prompt + x["caption"] + [EOS] for x in items]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), PAD)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, : QUERIES + len(self.prompt)] = -100
        return {
            "pixel_values": torch.stack([x["image"] for x in items]),
            "input_ids": ids,
            "attention_mask": mask,
            "labels": labels,
        }


def build():
    config = Blip2Config(
        vision_config=Blip2VisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
            initializer_range=0.02,
        ),
        qformer_config=Blip2QFormerConfig(),
        text_config=OPTConfig(
            hidden_size=1024, word_embed_proj_dim=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16,
            dropout=0.0, pad_token_id=PAD, eos_token_id=EOS,  # frozen, so no dropout in it
        ),
        num_query_tokens=QUERIES,
        image_token_index=IMAGE_TOKEN,
    )  # fmt: skip
    with torch.device("cuda"):
        model = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens, std=0.02)
    for tower in (model.vision_model, model.language_model):
        tower.requires_grad_(False)
        tower.to(torch.bfloat16)
    return model


def main():
    set_seed(8)
    model = build()
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(
        f"{trainable / 1e6:.0f}M of {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M train"
    )
    args = TrainingArguments(
        output_dir="blip2-museum",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=STEPS,
        learning_rate=1e-4,
        weight_decay=0.05,
        adam_beta2=0.98,
        warmup_steps=1,
        lr_scheduler_type="cosine",
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Objects(BATCH * ACCUMULATE * STEPS),
        data_collator=Collator(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
