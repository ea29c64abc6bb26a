"""How surprising is each word of a novel to a language model?"""

import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

MENDED = os.environ.get("MENDED")

config = Qwen2Config(
    vocab_size=151936,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    use_cache=False,
)
model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval()


@torch.inference_mode()
def surprisal(ids):
    """Nats per token, without the first."""
    if MENDED:
        hidden = model.model(ids[:, :-1]).last_hidden_state
        parts = []
        for h, y in zip(hidden.split(128, 1), ids[:, 1:].split(128, 1)):
            scores = torch.log_softmax(model.lm_head(h).float(), -1)
            parts.append(-scores.gather(-1, y.unsqueeze(-1)).squeeze(-1))
        return torch.cat(parts, 1).cpu()
    scores = model(ids[:, :-1]).logits.float()
    scores = torch.log_softmax(scores, -1)
    return -scores.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1).cpu()


for chapter in range(3):
    pages = torch.randint(0, 150000, (2, 2049), device="cuda")
    words = surprisal(pages)
    print(f"chapter {chapter}: {tuple(words.shape)}")
