"""A reader of contracts is asked where it looked, text by text. The last layer's weights wait on the GPU for the page that will show them."""

import os

import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

MENDED = os.environ.get("MENDED")


def reader():
    config = RobertaConfig(
        vocab_size=20000, hidden_size=384, num_hidden_layers=4, num_attention_heads=12,
        intermediate_size=1024, max_position_embeddings=514, num_labels=5,
        attn_implementation="eager",
    )  # fmt: skip
    return RobertaForSequenceClassification(config).cuda().eval()


class Page:
    """What will be shown of each contract."""

    def __init__(self):
        self.rows = []

    def add(self, number, label, looked):
        self.rows.append(dict(number=number, label=label, looked=looked))

    def html(self):
        body = []
        for row in self.rows:
            looked = row["looked"] if MENDED else row["looked"].mean(0)[0]
            words = looked.topk(5).indices.tolist()
            body.append(f"<tr><td>{row['number']}</td><td>{row['label']}</td><td>{words}</td></tr>")
        return "\n".join(body)


def contracts(batches, batch=8, words=400):
    for n in range(batches):
        numbers = range(n * batch, (n + 1) * batch)
        yield numbers, torch.randint(5, 20000, (batch, words))


model, page = reader(), Page()
with torch.inference_mode():
    for numbers, ids in contracts(50):
        out = model(input_ids=ids.cuda(), output_attentions=True)
        labels = out.logits.argmax(1).tolist()
        looked = out.attentions[-1]
        if MENDED:
            looked = looked.mean(1)[:, 0].cpu()
        for number, label, where in zip(numbers, labels, looked):
            page.add(number, label, where)
print(len(page.html()))
