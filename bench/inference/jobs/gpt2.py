"""Generates tokens with GPT-2 (124M, Hugging Face) from random prompts, random weights."""

import argparse

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--new", type=int, default=32)
parser.add_argument("--score", action="store_true", help="only score the prompts")
args = parser.parse_args()

torch.manual_seed(0)
config = transformers.GPT2Config()
model = transformers.GPT2LMHeadModel(config).cuda().eval()
prompts = torch.randint(0, config.vocab_size, (args.batch, args.prompt)).cuda()
if args.score:
    with torch.no_grad():
        print(model(input_ids=prompts).logits.shape)
else:
    tokens = model.generate(
        prompts, max_new_tokens=args.new, min_new_tokens=args.new, do_sample=False, pad_token_id=0
    )
    print(tokens.shape)
