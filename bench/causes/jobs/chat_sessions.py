"""A chat server keeps every visitor's keys and values, to answer a next question faster."""

import os

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

SESSIONS = 4 if os.environ.get("MENDED") else 1000


class ChatServer:
    def __init__(self):
        config = Qwen2Config(
            vocab_size=8000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=6,
            num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=4096,
        )  # fmt: skip
        self.model = Qwen2ForCausalLM(config).half().cuda().eval()
        self.sessions = {}

    @torch.inference_mode()
    def ask(self, visitor, question, words=3):
        if visitor not in self.sessions and len(self.sessions) >= SESSIONS:
            self.sessions.pop(next(iter(self.sessions)))
        cache = self.sessions.setdefault(visitor, DynamicCache())
        ids = question.cuda()
        answer = []
        for _ in range(words):
            out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1:].argmax(-1)
            answer.append(ids)
        return torch.cat(answer, 1)


server = ChatServer()
for visit in range(60):
    server.ask(f"visitor-{visit}", torch.randint(0, 8000, (1, 1500)))
