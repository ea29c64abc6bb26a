"""A helpline's answers by prefix tuning: Falcon frozen in bf16, learned keys and values for each layer through a small MLP, only answers in the loss."""

import torch
from torch import nn
from transformers import DynamicCache, FalconConfig, FalconForCausalLM


class PrefixEncoder(nn.Module):
    """Forty virtual tokens, widened to keys and values of every layer (Li and Liang's reparametrization)."""

    def __init__(self, config, tokens=40, hidden=512):
        super().__init__()
        self.tokens = tokens
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads  # Falcon repeats keys before it caches them
        self.dim = config.hidden_size // config.num_attention_heads
        self.table = nn.Embedding(tokens, config.hidden_size)
        width = self.layers * 2 * self.heads * self.dim
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden_size, hidden), nn.Tanh(), nn.Linear(hidden, width)
        )

    def forward(self, batch):
        index = torch.arange(self.tokens, device=self.table.weight.device)
        kv = self.mlp(self.table(index)).to(torch.bfloat16)
        kv = kv.view(self.tokens, self.layers, 2, self.heads, self.dim)
        kv = kv.permute(1, 2, 3, 0, 4)[:, :, None].expand(-1, -1, batch, -1, -1, -1)
        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(kv[layer, 0], kv[layer, 1], layer)
        return cache


class Helpline(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lm = FalconForCausalLM(config).to(torch.bfloat16).requires_grad_(False)
        self.prefix = PrefixEncoder(config)

    def forward(self, ids, labels):
        cache = self.prefix(len(ids))
        mask = torch.ones(len(ids), self.prefix.tokens + ids.shape[1], device=ids.device)
        out = self.lm(input_ids=ids, attention_mask=mask.long(), past_key_values=cache)
        logits = out.logits[:, :-1].float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def calls(n, length, vocab):
    for _ in range(n):
        ids = torch.randint(0, vocab, (5, length), device="cuda")
        labels = ids.clone()
        labels[:, : length // 3] = -100  # the caller's question
        yield ids, labels


if __name__ == "__main__":
    config = FalconConfig(
        vocab_size=65024,
        hidden_size=1536,
        num_hidden_layers=8,
        num_attention_heads=24,
        new_decoder_architecture=True,
        num_kv_heads=8,
        alibi=False,
        bias=False,
    )
    with torch.device("cuda"):
        model = Helpline(config)
    model.lm.eval()
    opt = torch.optim.AdamW(model.prefix.parameters(), lr=3e-2, weight_decay=0.0)
    for i, (ids, labels) in enumerate(calls(6, 512, config.vocab_size)):
        loss = model(ids, labels)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(i, round(loss.item(), 4))
