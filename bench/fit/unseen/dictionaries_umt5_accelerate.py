# Definitions of words in twelve languages, UMT5 (a position bias per layer) with accelerate.
# Mostly weights: the table of words is large and not shared with the head.
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset
from transformers import UMT5Config, UMT5ForConditionalGeneration, get_linear_schedule_with_warmup

STEPS = int(os.environ.get("JOB_STEPS", "5"))
VOCAB = 96_000


class Entries(IterableDataset):
    def __init__(self, source_len, target_len):
        self.source_len, self.target_len = source_len, target_len

    def __iter__(self):
        g = torch.Generator().manual_seed(7)
        while True:
            language = int(torch.randint(12, (), generator=g))
            low = 300 + language * 7900
            source = torch.randint(low, low + 7900, (self.source_len,), generator=g)
            target = torch.randint(low, low + 7900, (self.target_len,), generator=g)
            source[0] = 300 + language
            source[-1] = target[-1] = 1
            yield dict(input_ids=source, attention_mask=torch.ones_like(source), labels=target)


accelerator = Accelerator(mixed_precision="bf16")
torch.manual_seed(0)
config = UMT5Config(
    vocab_size=VOCAB,
    d_model=768,
    d_kv=64,
    d_ff=2048,
    num_layers=8,
    num_decoder_layers=8,
    num_heads=12,
    tie_word_embeddings=False,
    decoder_start_token_id=0,
    dropout_rate=0.1,
    use_cache=False,
)
model = UMT5ForConditionalGeneration(config)
accelerator.print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 1000)
loader = DataLoader(Entries(128, 96), batch_size=6)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
running = 0.0
for step, batch in zip(range(STEPS), loader):
    loss = model(**batch).loss
    accelerator.backward(loss)
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    running += accelerator.gather(loss.detach()).mean().item()
    accelerator.print(f"step {step} mean loss {running / (step + 1):.3f} norm {float(norm):.2f}")
