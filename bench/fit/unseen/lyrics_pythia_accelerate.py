"""Pythia-like GPT-NeoX on lyrics with accelerate: bf16, two batches for a step, linear warm-up, clipping."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, get_linear_schedule_with_warmup


def training_function(config):
    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=config["accumulate"]
    )
    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=50304,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=1024,
        )
    )
    dataset = TensorDataset(torch.randint(0, 50304, (config["batch"] * config["iters"], 1024)))
    loader = DataLoader(dataset, batch_size=config["batch"], shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], betas=(0.9, 0.95))
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, config["iters"])
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for (ids,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"loss {loss.item():.3f}")


def main():
    training_function({"lr": 6e-4, "batch": 6, "iters": 12, "accumulate": 2})


if __name__ == "__main__":
    main()
