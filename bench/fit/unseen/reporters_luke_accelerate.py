"""Relations between people and places in reports by LUKE, with its table of entities trained; accelerate, bf16."""

from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    LukeConfig,
    LukeForEntityPairClassification,
    get_linear_schedule_with_warmup,
)

RELATIONS = 42
MENTION = 30  # most tokens of a mention


def sentence(index, vocab, entities):
    """A sentence with two marked mentions, each linked to an entity of the table."""
    g = torch.Generator().manual_seed(index)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=g)

    length = int(draw(40, 161, 1))
    first = int(draw(1, length // 2 - 8, 1))
    second = int(draw(length // 2, length - 8, 1))
    spans = [(first, first + int(draw(1, 7, 1))), (second, second + int(draw(1, 7, 1)))]
    return {
        "words": draw(5, vocab, length),
        "entities": draw(4, entities, 2),
        "spans": spans,
        "label": int(draw(0, RELATIONS, 1)),
    }


def collate(items, pad):
    words = [item["words"] for item in items]
    ids = torch.nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=pad)
    places = torch.full((len(items), 2, MENTION), -1)
    for i, item in enumerate(items):
        for j, (start, end) in enumerate(item["spans"]):
            places[i, j, : end - start] = torch.arange(start, end)
    return {
        "input_ids": ids,
        "attention_mask": (ids != pad).long(),
        "entity_ids": torch.stack([item["entities"] for item in items]),
        "entity_attention_mask": torch.ones(len(items), 2, dtype=torch.long),
        "entity_position_ids": places,
        "labels": torch.tensor([item["label"] for item in items]),
    }


def main(steps=5, batch=12):
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(5)
    config = LukeConfig(num_labels=RELATIONS, entity_vocab_size=400_000, num_hidden_layers=12)
    model = LukeForEntityPairClassification(config)
    data = [
        sentence(i, config.vocab_size, config.entity_vocab_size) for i in range(2 * steps * batch)
    ]
    loader = DataLoader(
        data,
        batch_size=batch,
        shuffle=True,
        collate_fn=partial(collate, pad=config.pad_token_id),
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": model.luke.parameters(), "lr": 1e-5},
            {"params": model.classifier.parameters(), "lr": 1e-3},
        ],
        weight_decay=0.01,
        eps=1e-6,
    )
    schedule = get_linear_schedule_with_warmup(optimizer, 1, steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    seen, total = 0, 0.0
    for inputs in loader:
        with accelerator.accumulate(model):
            out = model(**inputs)
            accelerator.backward(out.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        total += out.loss.item()
        if accelerator.sync_gradients:
            seen += 1
            accelerator.print(f"step {seen} loss {total / 2:.4f}")
            total = 0.0


if __name__ == "__main__":
    main()
