"""DistilBERT on documents padded to the longest of each batch; one is very long."""
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

model = DistilBertForSequenceClassification(
    DistilBertConfig(dim=384, hidden_dim=1536, n_layers=4, n_heads=6, max_position_embeddings=4096)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
lengths = [180, 210, 160, 240, 200, 220, 4000, 150, 200]
for length in lengths:
    ids = torch.randint(0, 30000, (8, length), device="cuda")
    out = model(input_ids=ids, labels=torch.randint(0, 2, (8,), device="cuda"))
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
