"""Reviews of hotels, with Accelerate: small batches to learn from and large ones to be judged by, as no gradients are needed there. They are made all the same."""

import contextlib
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification


def reviews(count, words=256):
    return TensorDataset(torch.randint(0, 9000, (count, words)), torch.randint(0, 5, (count,)))


def build():
    config = DistilBertConfig(
        vocab_size=9000, dim=384, hidden_dim=1536, n_layers=5, n_heads=6, num_labels=5
    )
    return DistilBertForSequenceClassification(config)


class Judge:
    """How often the stars are right."""

    def __init__(self, accelerator, loader):
        self.accelerator, self.loader = accelerator, loader
        self.context = torch.inference_mode if os.environ.get("MENDED") else contextlib.nullcontext

    def __call__(self, model):
        model.eval()
        right = asked = 0
        with self.context():
            for ids, stars in self.loader:
                said = model(input_ids=ids).logits.argmax(1)
                said, stars = self.accelerator.gather_for_metrics((said, stars))
                right += (said == stars).sum().item()
                asked += len(stars)
        return right / asked


def main():
    accelerator = Accelerator()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model, optimizer, train, test = accelerator.prepare(
        model,
        optimizer,
        DataLoader(reviews(32), batch_size=8),
        DataLoader(reviews(192), batch_size=96),
    )
    judge = Judge(accelerator, test)
    for epoch in range(2):
        model.train()
        for ids, stars in train:
            loss = model(input_ids=ids, labels=stars).loss
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(epoch, loss.item(), judge(model))


main()
