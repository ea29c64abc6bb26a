"""Summaries of statutes: LongT5 with transient-global attention, Accelerate with clipping and accumulation, texts of very different length."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import Adafactor, LongT5Config, LongT5ForConditionalGeneration

VOCAB = 32128
# Tokens of the longest text and of the longest summary in each batch of documents sorted into buckets.
BUCKETS = [(2816, 256), (1536, 128), (3584, 384), (2304, 192), (3072, 320)]
PER_BATCH = 2


class Statutes(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(5)
        self.items = []
        for long, short in BUCKETS:
            for k in range(PER_BATCH):
                n = long if k == 0 else int(torch.randint(long * 3 // 4, long, (), generator=g))
                m = short if k == 0 else int(torch.randint(short // 2, short, (), generator=g))
                text = torch.randint(3, VOCAB, (n,), generator=g)
                text[-1] = 1
                summary = text[torch.randint(n - 1, (m,), generator=g).sort().values].clone()
                summary[-1] = 1
                self.items.append({"text": text, "summary": summary})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([x["text"] for x in items], batch_first=True, padding_value=0)
    labels = pad([x["summary"] for x in items], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main(epochs=2):
    set_seed(5)
    torch.set_float32_matmul_precision("high")
    accelerator = Accelerator(gradient_accumulation_steps=2)
    config = LongT5Config(
        vocab_size=VOCAB,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        encoder_attention_type="transient-global",
        local_radius=127,
        global_block_size=16,
        decoder_start_token_id=0,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LongT5ForConditionalGeneration(config)
    accelerator.print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    optimizer = Adafactor(
        model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False, warmup_init=False
    )
    loader = DataLoader(Statutes(), batch_size=PER_BATCH, shuffle=False, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    done = 0
    for epoch in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                out = model(**batch)
                accelerator.backward(out.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if accelerator.sync_gradients:
                done += 1
                width = batch["input_ids"].shape[1]
                accelerator.print(
                    f"epoch {epoch} step {done} width {width} loss {out.loss.item():.4f}"
                )
    accelerator.end_training()


if __name__ == "__main__":
    main()
