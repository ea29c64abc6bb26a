"""A small engine with pages of keys and values. Who is done leaves, but the pages of those who gave up stay."""

import os
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
PAGE = 128


class Page:
    """Keys and values of some tokens, in all layers."""

    def __init__(self, layers, heads, d):
        self.kv = torch.zeros(layers, 2, heads, PAGE, d, device="cuda", dtype=torch.float16)


class Request:
    def __init__(self, number, length, patience):
        self.number, self.length, self.patience, self.at = number, length, patience, 0


class Engine:
    def __init__(self, layers=6, heads=16, d=64, words=1000):
        self.shape = layers, heads, d
        kind = dict(device="cuda", dtype=torch.float16)
        width = heads * d
        self.embed = nn.Embedding(words, width, **kind)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, **kind) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, **kind) for _ in range(layers))
        self.tables = {}

    @torch.inference_mode()
    def advance(self, request):
        """Another page of tokens of one request, at once."""
        layers, heads, d = self.shape
        pages = self.tables.setdefault(request.number, [])
        pages.append(Page(layers, heads, d))
        x = self.embed(torch.randint(0, 1000, (PAGE,), device="cuda"))
        for n in range(layers):
            q, k, v = self.qkv[n](x).view(PAGE, 3, heads, d).permute(1, 2, 0, 3)
            pages[-1].kv[n, 0], pages[-1].kv[n, 1] = k, v
            keys = torch.cat([page.kv[n, 0] for page in pages], 1)
            values = torch.cat([page.kv[n, 1] for page in pages], 1)
            x = x + self.out[n](
                F.scaled_dot_product_attention(q, keys, values).transpose(0, 1).flatten(1)
            )
        request.at += PAGE

    def finish(self, request):
        self.tables.pop(request.number, None)

    def give_up(self, request):
        if MENDED:
            self.tables.pop(request.number, None)

    def serve(self, requests, at_once=4):
        waiting, running = deque(requests), []
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.popleft())
            for request in list(running):
                self.advance(request)
                if request.at >= request.length:
                    self.finish(request)
                    running.remove(request)
                elif request.at >= request.patience:
                    self.give_up(request)
                    running.remove(request)


engine = Engine()
engine.serve(Request(n, 1280 if n % 3 else 640, 896) for n in range(36))
