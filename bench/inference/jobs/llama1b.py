"""Generates tokens with a Llama of 1.2 billion parameters (the shape of Llama 3.2 1B), random weights."""

import argparse

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--prompt", type=int, default=1024)
parser.add_argument("--new", type=int, default=16)
parser.add_argument("--score", action="store_true", help="only score the prompts")
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    tie_word_embeddings=True,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
torch.set_default_dtype(getattr(torch, args.dtype))
model = transformers.LlamaForCausalLM(config).cuda().eval()
prompts = torch.randint(0, config.vocab_size, (args.batch, args.prompt)).cuda()
if args.score:
    with torch.no_grad():
        print(model(input_ids=prompts).logits.shape)
else:
    tokens = model.generate(prompts, max_new_tokens=args.new, do_sample=False)
    print(tokens.shape)
