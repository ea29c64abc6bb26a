"""Prompt tuning: a frozen GPT-NeoX in bf16 and forty learned vectors in front of the embedded tickets."""

import torch
import torch.nn as nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


class SoftPrompt(nn.Module):
    def __init__(self, lm, length=40, hidden=512):
        super().__init__()
        self.lm = lm
        for p in lm.parameters():
            p.requires_grad = False
        width = lm.config.hidden_size
        self.seed = nn.Embedding(length, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def forward(self, ids, labels):
        words = self.lm.get_input_embeddings()(ids)
        prompt = self.mlp(self.seed.weight).to(words.dtype).expand(len(ids), -1, -1)
        pad = torch.full((len(ids), prompt.shape[1]), -100, device=ids.device)
        return self.lm(
            inputs_embeds=torch.cat([prompt, words], 1), labels=torch.cat([pad, labels], 1)
        ).loss


def main():
    torch.manual_seed(1)
    config = GPTNeoXConfig(
        vocab_size=50432,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
        use_cache=False,
    )
    with torch.device("cuda"):
        lm = GPTNeoXForCausalLM(config).bfloat16()
    model = SoftPrompt(lm).cuda()
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    for step in range(6):
        ids = torch.randint(0, 50432, (6, 500)).cuda()
        labels = ids.masked_fill(torch.rand(ids.shape, device="cuda") < 0.3, -100)
        loss = model(ids, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, float(loss))


main()
