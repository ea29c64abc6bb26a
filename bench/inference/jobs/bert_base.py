"""Encodes random tokens with BERT-base (Hugging Face) and predicts masked words, random weights."""

import argparse

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--batches", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
config = transformers.BertConfig()
model = transformers.BertForMaskedLM(config).cuda().eval()
with torch.no_grad():
    for _ in range(args.batches):
        tokens = torch.randint(0, config.vocab_size, (args.batch, args.length)).cuda()
        print(model(input_ids=tokens).logits.argmax(-1)[0, :8].tolist())
