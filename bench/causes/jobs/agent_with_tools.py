"""Sixteen agents answer with tools: think, call, read what the tool says, think again."""

import os

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

MENDED = os.environ.get("MENDED")


class Agents:
    def __init__(self, count=16):
        config = LlamaConfig(
            vocab_size=8000,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=6,
            num_attention_heads=16,
            num_key_value_heads=16,
            max_position_embeddings=32768,
        )
        self.model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
        self.count = count
        self.memory = DynamicCache(config=config)
        self.config = config

    def read(self, ids):
        out = self.model(ids, past_key_values=self.memory, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    @torch.inference_mode()
    def turn(self, observation, words=3):
        if MENDED and self.memory.get_seq_length() > 1500:
            self.memory = DynamicCache(config=self.config)
        token = self.read(observation)
        said = []
        for _ in range(words):
            said.append(token)
            token = self.read(token)
        return torch.cat(said, 1)


def tool(call):
    """A page of search results."""
    return torch.randint(0, 8000, (call.shape[0], 420), device="cuda")


agents = Agents()
call = torch.zeros(agents.count, 1, dtype=torch.long, device="cuda")
for turn in range(16):
    call = agents.turn(tool(call))
print("done after", turn + 1, "turns")
