"""Continued pretraining on code: a small Llama, accelerate with bf16 and accumulation, packed blocks of 1024 tokens."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--block-size", type=int, default=1024)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main(args):
    set_seed(args.seed)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate)

    config = LlamaConfig(
        vocab_size=32016,
        hidden_size=896,
        intermediate_size=2432,
        num_hidden_layers=12,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    blocks = torch.randint(0, config.vocab_size, (64, args.block_size))
    loader = DataLoader(blocks, batch_size=args.batch_size, shuffle=True)

    decay, no_decay = [], []
    for p in model.parameters():
        (decay if p.dim() > 1 else no_decay).append(p)
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
    )
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 1000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    model.train()
    done = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            accelerator.print(f"step {done} loss {loss.item():.4f}")
            if done == args.steps:
                break


if __name__ == "__main__":
    main(get_args())
