"""A fine-tuning script in the style of many: every mistake is marked."""
import argparse
import os

import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def build(args):
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model)
    model.to(args.device)
    return tokenizer, model


def evaluate(model, dataloader, device):
    model.eval()
    logits, labels = [], []
    for batch in tqdm(dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)  # OOM201
        logits.append(outputs.logits)  # OOM103
        labels.append(batch["labels"])
    return torch.cat(logits), torch.cat(labels)


@torch.no_grad()
def predict(model, dataloader, device):
    model.eval()
    all_logits = []
    for batch in dataloader:
        outputs = model(**{k: v.to(device) for k, v in batch.items()})
        all_logits.append(outputs.logits)
    return torch.cat(all_logits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, model = build(args)
    train_dataloader = DataLoader([], batch_size=8, shuffle=True)
    eval_dataloader = DataLoader([], batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    if os.path.exists("last.pt"):
        checkpoint = torch.load("last.pt")  # OOM503 OOM505
        model.load_state_dict(checkpoint["model"])
    scaler = torch.cuda.amp.GradScaler()
    history = []
    for epoch in range(3):
        model.train()
        total_loss = 0
        progress = tqdm(enumerate(train_dataloader), total=len(train_dataloader))
        for step, batch in progress:
            batch = {k: v.to(device) for k, v in batch.items()}
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                outputs = model(**batch)
                loss = outputs.loss
                loss = loss / args.accumulate
            scaler.scale(loss).backward()
            if (step + 1) % args.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # OOM814
                scaler.step(optimizer)
                scaler.update()
            total_loss += loss  # OOM101
            history.append(loss)  # OOM102
            progress.set_description(f"loss {total_loss / (step + 1):.4f}")
            torch.cuda.empty_cache()  # OOM611
        evaluate(model, eval_dataloader, device)
        print(predict(model, eval_dataloader, device).shape)
    return history


if __name__ == "__main__":
    main()
