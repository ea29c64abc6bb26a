"""Spelling mistakes marked letter by letter with CANINE (hashed characters, local attention, down- and upsampling): own loop, texts of uneven length, two groups, fp32, NAdam."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import CanineConfig, CanineForTokenClassification

random.seed(8)
LABELS = ["ok", "insert", "delete", "swap", "replace"]


def sample():
    n = random.randint(520, 1024)
    text = torch.randint(32, 0x2000, (n,))
    tags = torch.zeros(n, dtype=torch.long)
    wrong = torch.rand(n) < 0.08
    tags[wrong] = torch.randint(1, len(LABELS), (int(wrong.sum()),))
    return text, tags


def batches(size, count):
    for _ in range(count):
        rows = sorted((sample() for _ in range(size)), key=lambda r: len(r[0]))
        text = pad_sequence([t for t, _ in rows], batch_first=True)
        tags = pad_sequence([y for _, y in rows], batch_first=True, padding_value=-100)
        spare = -text.shape[1] % 128
        text = torch.nn.functional.pad(text, (0, spare))
        tags = torch.nn.functional.pad(tags, (0, spare), value=-100)
        yield text.cuda(), (text > 0).long().cuda(), tags.cuda()


net = CanineForTokenClassification(
    CanineConfig(
        hidden_size=512,
        num_hidden_layers=7,
        num_attention_heads=8,
        intermediate_size=2048,
        num_labels=len(LABELS),
    )
).cuda()
body, head = [], []
for name, p in net.named_parameters():
    (head if name.startswith("classifier") else body).append(p)
optimizer = torch.optim.NAdam([{"params": body, "lr": 3e-5}, {"params": head, "lr": 1e-3}])
weights = torch.tensor([0.2, 1.0, 1.0, 1.5, 1.0], device="cuda")

net.train()
for n, (text, mask, tags) in enumerate(batches(16, 5), 1):
    logits = net(input_ids=text, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tags.flatten(), weight=weights, ignore_index=-100
    )
    net.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
    optimizer.step()
    print(f"batch {n}: {text.shape[1]} letters, loss {loss.item():.4f}")
