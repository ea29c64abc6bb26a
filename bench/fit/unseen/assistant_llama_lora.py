"""LoRA on a frozen bf16 Llama of 0.8 billion weights as PEFT does it (wrapped linears, dropout), with Trainer and gradient checkpointing."""

import tempfile

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16, dropout=0.05):
        super().__init__()
        self.base_layer = base
        device = base.weight.device
        self.lora_A = nn.Linear(base.in_features, r, bias=False, device=device)
        self.lora_B = nn.Linear(r, base.out_features, bias=False, device=device)
        self.lora_dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = alpha / r

    def forward(self, x):
        result = self.base_layer(x)
        x = self.lora_dropout(x.to(self.lora_A.weight.dtype))
        return result + (self.lora_B(self.lora_A(x)) * self.scaling).to(result.dtype)


def inject(model, names):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoraLinear(child))
    for n, p in model.named_parameters():
        p.requires_grad_("lora_" in n)
    return model


class Chats(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        ids = (torch.arange(1024) * (i + 3)) % 31999
        return {"input_ids": ids, "labels": torch.where(torch.arange(1024) < 200, -100, ids)}


config = LlamaConfig(
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=22,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=32000,
    use_cache=False,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
inject(model, {"q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"})
model.enable_input_require_grads()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    max_steps=4,
    learning_rate=1e-4,
    bf16=True,
    save_strategy="no",
    report_to="none",
    logging_steps=2,
)
Trainer(model=model, args=args, train_dataset=Chats()).train()
