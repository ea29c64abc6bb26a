"""Answers of a help desk by ORPO: Mistral in bf16 with adapters of rank 32 on its MLPs and outputs, odds ratio over pairs, four micro-batches."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import MistralConfig, MistralForCausalLM


class Adapted(nn.Module):
    """A frozen linear layer beside two small ones, kept in float32."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, p: float):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale, self.drop = alpha / rank, nn.Dropout(p)

    def forward(self, x):
        delta = F.linear(F.linear(self.drop(x).float(), self.down), self.up)
        return self.base(x) + (self.scale * delta).to(x.dtype)


def adapt(model, names, **options):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in names:
                setattr(module, name, Adapted(child, **options))
    return [p for p in model.parameters() if p.requires_grad]


def answer_logp(model, ids, prompt_length):
    logits = model(input_ids=ids).logits[:, prompt_length - 1 : -1]
    logp = torch.log_softmax(logits.float(), -1)
    return logp.gather(-1, ids[:, prompt_length:, None]).squeeze(-1).mean(-1)


def orpo(chosen, rejected, lam=0.1):
    log_odds = (chosen - rejected) - (
        torch.log1p(-chosen.exp().clamp(max=0.999)) - torch.log1p(-rejected.exp().clamp(max=0.999))
    )
    return (-chosen - lam * F.logsigmoid(log_odds)).mean()


def main():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        sliding_window=None,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = MistralForCausalLM(config).to(torch.bfloat16)
    trained = adapt(
        model, {"gate_proj", "up_proj", "down_proj", "o_proj"}, rank=32, alpha=64, p=0.05
    )
    optimizer = torch.optim.AdamW(trained, lr=8e-6, betas=(0.9, 0.95))
    prompt, answer, micro = 192, 320, 2
    for step in range(4):
        for _ in range(4):
            pairs = torch.randint(3, 32000, (2, micro, prompt + answer), device="cuda")
            pairs[1, :, :prompt] = pairs[0, :, :prompt]
            logp = answer_logp(model, pairs.flatten(0, 1), prompt).view(2, micro)
            loss = orpo(logp[0], logp[1])
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
