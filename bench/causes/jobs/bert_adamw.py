"""BERT: the first step of AdamW makes its state."""
import torch
from transformers import BertConfig, BertForSequenceClassification


def main():
    with torch.device("cuda"):
        model = BertForSequenceClassification(BertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for _ in range(3):
        ids = torch.randint(0, 30000, (2, 64), device="cuda")
        labels = torch.randint(0, 2, (2,), device="cuda")
        out = model(input_ids=ids, labels=labels)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()


main()
