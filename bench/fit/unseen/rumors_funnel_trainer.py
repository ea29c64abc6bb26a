"""Which of four rumors follows from an article: Funnel Transformer for multiple choice, Trainer in bf16, batches of mixed lengths."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import FunnelConfig, FunnelForMultipleChoice, Trainer, TrainingArguments

CHOICES, VOCAB = 4, 30522
CLS, SEP, PAD = 101, 102, 0


class Rumors(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(11)
        self.items = []
        for _ in range(size):
            n = int(torch.randint(120, 330, (), generator=g))
            article = torch.randint(1000, VOCAB, (n,), generator=g).tolist()
            rumors = [
                torch.randint(1000, VOCAB, (int(m),), generator=g).tolist()
                for m in torch.randint(8, 48, (CHOICES,), generator=g)
            ]
            answer = int(torch.randint(CHOICES, (), generator=g))
            self.items.append((article, rumors, answer))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        article, rumors, answer = self.items[i]
        rows = [[CLS, *article, SEP, *rumor, SEP] for rumor in rumors]
        return {"rows": rows, "first": len(article) + 2, "label": answer}


def collate(items):
    longest = max(len(row) for item in items for row in item["rows"])
    width = (longest + 15) // 16 * 16
    ids = torch.full((len(items), CHOICES, width), PAD)
    segments = torch.zeros_like(ids)
    mask = torch.zeros_like(ids)
    for b, item in enumerate(items):
        for c, row in enumerate(item["rows"]):
            ids[b, c, : len(row)] = torch.tensor(row)
            segments[b, c, item["first"] : len(row)] = 1
            mask[b, c, : len(row)] = 1
    labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, "labels": labels}


def groups(model, decay):
    bare = [p for n, p in model.named_parameters() if n.endswith("bias") or "layer_norm" in n]
    known = {id(p) for p in bare}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [{"params": rest, "weight_decay": decay}, {"params": bare, "weight_decay": 0.0}]


class Printing(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        right = (outputs.logits.argmax(-1) == inputs["labels"]).float().mean()
        if self.state.global_step % 2 == 0:
            self.log({"accuracy": right.item()})
        return (outputs.loss, outputs) if return_outputs else outputs.loss


torch.manual_seed(11)
config = FunnelConfig(
    vocab_size=VOCAB, block_sizes=[4, 4, 4], d_model=768, n_head=12, d_head=64, d_inner=3072,
    pooling_type="mean", attention_type="relative_shift", initializer_std=0.02,
)  # fmt: skip
model = FunnelForMultipleChoice(config)
print(f"{model.num_parameters() / 1e6:.1f} M parameters")
optimizer = torch.optim.AdamW(groups(model, 0.01), lr=2e-5)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 100))

args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=6,
    max_steps=5,
    bf16=True,
    max_grad_norm=1.0,
    logging_steps=1,
    remove_unused_columns=False,
    save_strategy="no",
    report_to="none",
    seed=11,
)
trainer = Printing(
    model=model,
    args=args,
    train_dataset=Rumors(60),
    data_collator=collate,
    optimizers=(optimizer, schedule),
)
print(trainer.train())
