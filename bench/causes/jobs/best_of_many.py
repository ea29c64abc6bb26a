"""Best-of-n: one long question, many sampled answers, and a judge that picks one."""

import argparse
import os

import torch
from transformers import StableLmConfig, StableLmForCausalLM, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("-n", type=int, default=4 if os.environ.get("MENDED") else 64)
parser.add_argument("--question-length", type=int, default=1400)
parser.add_argument("--answer-length", type=int, default=5)
parser.add_argument("--temperature", type=float, default=0.7)


class Judge(torch.nn.Module):
    def __init__(self, words):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(words, 32)
        self.score = torch.nn.Linear(32, 1)

    def forward(self, answers):
        return self.score(self.bag(answers)).squeeze(-1)


def main(args):
    set_seed(0)
    config = StableLmConfig(
        vocab_size=3000, hidden_size=512, intermediate_size=1024, num_hidden_layers=14,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    model = StableLmForCausalLM(config).to(torch.bfloat16).cuda().eval()
    judge = Judge(config.vocab_size).cuda().eval()
    question = torch.randint(2, 3000, (1, args.question_length), device="cuda")
    answers = model.generate(
        question, attention_mask=torch.ones_like(question), do_sample=True, use_cache=True,
        temperature=args.temperature, top_k=50, num_return_sequences=args.n,
        max_new_tokens=args.answer_length,
    )  # fmt: skip
    answers = answers[:, args.question_length :]
    with torch.no_grad():
        print(answers[judge(answers).argmax()].tolist())


if __name__ == "__main__":
    main(parser.parse_args())
