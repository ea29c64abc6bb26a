"""QLoRA without bitsandbytes: 4-bit NormalFloat base weights (packed two to a byte, one scale per 64), dequantised in a
custom autograd Function in both directions; rank-16 adapters in fp32 on every linear layer of a 1.1B StableLM."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, StableLmConfig

BLOCK = 64
NF4 = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
]  # fmt: skip


def quantize(w, code):
    blocks = w.float().view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-8)
    middle = (code[1:] + code[:-1]) / 2
    index = torch.bucketize(blocks / scale, middle).to(torch.uint8).view(-1, 2)
    return (index[:, 0] << 4) | index[:, 1], scale.squeeze(1).half()


def dequantize(packed, scale, code, shape, dtype):
    index = torch.stack([packed >> 4, packed & 15], 1).view(-1).int()
    w = code.to(dtype)[index].view(-1, BLOCK) * scale.to(dtype)[:, None]
    return w.view(shape)


class Linear4bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed, scale, code, bias, shape):
        ctx.save_for_backward(packed, scale, code)
        ctx.shape = shape
        return F.linear(x, dequantize(packed, scale, code, shape, x.dtype), bias)

    @staticmethod
    def backward(ctx, grad):
        packed, scale, code = ctx.saved_tensors
        w = dequantize(packed, scale, code, ctx.shape, grad.dtype)
        return grad @ w, None, None, None, None, None


class QLoRALinear(nn.Module):
    def __init__(self, base, code, rank=16, alpha=32, dropout=0.05):
        super().__init__()
        self.shape, self.scaling = tuple(base.weight.shape), alpha / rank
        packed, scale = quantize(base.weight.data, code)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("code", code)
        self.register_buffer("bias", base.bias.data if base.bias is not None else None)
        device = base.weight.device
        self.a = nn.Parameter(torch.empty(rank, self.shape[1], device=device))
        self.b = nn.Parameter(torch.zeros(self.shape[0], rank, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        out = Linear4bit.apply(x, self.packed, self.scale, self.code, self.bias, self.shape)
        low = F.linear(F.linear(self.drop(x), self.a.to(x.dtype)), self.b.to(x.dtype))
        return out + self.scaling * low


def inject(model, code, skip=("lm_head",)):
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name not in skip:
                setattr(parent, name, QLoRALinear(child, code))


def tickets(batch, length, vocab, device):
    """Prompts count nothing, answers do; answers are of different length."""
    ids = torch.randint(5, vocab, (batch, length), device=device)
    labels = ids.clone()
    prompt = torch.randint(length // 4, length // 2, (batch, 1), device=device)
    end = torch.randint(3 * length // 4, length, (batch, 1), device=device)
    pos = torch.arange(length, device=device)[None]
    labels[(pos < prompt) | (pos >= end)] = -100
    return {"input_ids": ids, "attention_mask": (pos < end).long(), "labels": labels}


def main():
    torch.manual_seed(0)
    device = "cuda"
    config = StableLmConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=18, num_attention_heads=32,
        num_key_value_heads=32, max_position_embeddings=2048, use_cache=False,
    )  # fmt: skip
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.requires_grad_(False)
    inject(model, torch.tensor(NF4, device=device))
    torch.cuda.empty_cache()
    model.train()
    adapters = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in adapters) / 1e6:.1f}M trainable")
    opt = torch.optim.AdamW(adapters, lr=2e-4, betas=(0.9, 0.999), weight_decay=0.0)
    for step in range(3):
        loss = model(**tickets(3, 1024, config.vocab_size, device)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(adapters, 0.3)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
