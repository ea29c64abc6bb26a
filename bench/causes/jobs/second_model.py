"""A second model is made and trained while the first is still there."""
import torch
from transformers import RobertaConfig, RobertaForSequenceClassification


def make():
    config = RobertaConfig(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, vocab_size=20000)
    with torch.device("cuda"):
        return RobertaForSequenceClassification(config)


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        ids = torch.randint(5, 20000, (2, 32), device="cuda")
        loss = model(input_ids=ids, labels=torch.zeros(2, dtype=torch.long, device="cuda")).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


baseline = make()
baseline_optimizer = train(baseline)
improved = make()
improved_optimizer = train(improved)
