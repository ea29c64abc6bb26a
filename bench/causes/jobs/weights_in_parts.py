"""Pretrained weights come in parts; all parts are read to the GPU into one dictionary, which stays."""

import os
import pathlib
import tempfile

import torch
from transformers import ElectraConfig, ElectraForSequenceClassification

WHERE = "cpu" if os.environ.get("MENDED") else "cuda:0"
config = ElectraConfig(
    vocab_size=20000, embedding_size=512, hidden_size=768, num_hidden_layers=8,
    num_attention_heads=12, intermediate_size=3072, num_labels=5,
)  # fmt: skip


def publish(folder, parts=4):
    """What somebody else trained, and cut into parts."""
    everything = list(ElectraForSequenceClassification(config).state_dict().items())
    for part in range(parts):
        torch.save(dict(everything[part::parts]), folder / f"pytorch_model-{part:05}.bin")


folder = pathlib.Path(tempfile.mkdtemp())
publish(folder)
weights = {}
for file in sorted(folder.glob("*.bin")):
    weights.update(torch.load(file, map_location=WHERE))
    file.unlink()
folder.rmdir()

model = ElectraForSequenceClassification(config)
missing, unexpected = model.load_state_dict(weights, strict=False)
model.to("cuda:0").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
for step in range(3):
    batch = torch.randint(0, 20000, (2, 64), device="cuda:0")
    out = model(input_ids=batch, labels=torch.randint(0, 5, (2,), device="cuda:0"))
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
