"""A tiny inference server: requests come in, each is read once and then answered word by word."""

import os
from collections import deque
from dataclasses import dataclass

import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

MENDED = os.environ.get("MENDED")
AT_ONCE = 4 if MENDED else 64


@dataclass
class Request:
    number: int
    prompt: torch.Tensor
    wanted: int
    answer: list
    cache: DynamicCache = None


class Server:
    def __init__(self):
        config = MistralConfig(
            vocab_size=6000,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=6,
            num_attention_heads=16,
            num_key_value_heads=16,
            sliding_window=None,
        )
        self.model = MistralForCausalLM(config).cuda().eval()
        self.waiting, self.active, self.done = deque(), [], []

    def submit(self, request):
        self.waiting.append(request)

    def forward(self, request, ids):
        out = self.model(ids, past_key_values=request.cache, use_cache=True, logits_to_keep=1)
        request.answer.append(out.logits[:, -1].argmax(-1, keepdim=True))

    def tick(self):
        while self.waiting and len(self.active) < AT_ONCE:
            request = self.waiting.popleft()
            request.cache = DynamicCache()
            self.forward(request, request.prompt.cuda())
            self.active.append(request)
        for request in list(self.active):
            self.forward(request, request.answer[-1])
            if len(request.answer) >= request.wanted:
                request.cache = None
                self.active.remove(request)
                self.done.append(request)


@torch.inference_mode()
def main():
    server = Server()
    for n in range(28):
        server.submit(Request(n, torch.randint(0, 6000, (1, 1400)), 5, []))
    while server.waiting or server.active:
        server.tick()
    print("answered", len(server.done))


main()
