"""Instruction tuning of a Qwen2 (as wide as the 0.5B) with low-rank adapters as parametrizations (as minLoRA does), by HF's Trainer."""

import math
import tempfile
from functools import partial

import torch
import torch.nn.utils.parametrize as P
from torch import nn
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments


class LoRA(nn.Module):
    """W -> W + B A * alpha / r"""

    def __init__(self, fan_out: int, fan_in: int, rank: int = 16, alpha: float = 32.0, dtype=None):
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, fan_in, dtype=dtype))
        self.B = nn.Parameter(torch.zeros(fan_out, rank, dtype=dtype))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, W):
        return W + (self.B @ self.A).to(W.dtype) * self.scaling

    @classmethod
    def of(cls, layer: nn.Linear, **kw):
        return cls(*layer.weight.shape, **kw).to(layer.weight.device)


def add_lora(model: nn.Module, targets: tuple[str, ...], make):
    for p in model.parameters():
        p.requires_grad_(False)
    for name, module in model.named_modules():
        if name.split(".")[-1] in targets:
            P.register_parametrization(module, "weight", make(module))
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{n / 1e6:.2f}M trainable")


class Instructions(Dataset):
    """Prompt (masked in the labels) and answer, padded to one length."""

    def __init__(self, n: int, length: int, vocab: int):
        gen = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab, (n, length), generator=gen)
        self.prompt = torch.randint(100, length // 2, (n,), generator=gen)
        self.total = torch.randint(length // 2 + 50, length + 1, (n,), generator=gen)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids, at = self.ids[i], torch.arange(self.ids.shape[1])
        labels = torch.where((at >= self.prompt[i]) & (at < self.total[i]), ids, -100)
        return dict(input_ids=ids, attention_mask=(at < self.total[i]).long(), labels=labels)


def main():
    cfg = Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=14,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=2048,
        tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    with torch.device("cuda"):  # quicker than to fill half a billion weights on the CPU
        model = Qwen2ForCausalLM(cfg).to(torch.bfloat16)
    add_lora(
        model,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        partial(LoRA.of, rank=16, dtype=torch.float32),
    )
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="lora"),
        per_device_train_batch_size=6,
        max_steps=4,
        learning_rate=2e-4,
        warmup_steps=1,
        bf16=True,
        max_grad_norm=0.3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=True,
    )
    Trainer(model=model, args=args, train_dataset=Instructions(64, 768, 151936)).train()
    for module in model.modules():
        if P.is_parametrized(module, "weight"):
            P.remove_parametrizations(module, "weight", leave_parametrized=True)


if __name__ == "__main__":
    main()
