"""Runs a Hugging Face model of random weights, described by a directory's config.json:

    python model.py DIR --batch N --tokens N [--dtype TYPE] [--train ...]

No weights are read: they are made on the GPU, so that the size of a file does not matter.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from torch import nn


class Lora(nn.Module):
    """A linear layer beside which an adapter works, as peft does it."""

    def __init__(self, base, rank, alpha, dropout, dtype):
        super().__init__()
        self.base_layer, self.scaling = base, alpha / rank
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        wanted = dict(bias=False, device=base.weight.device, dtype=dtype)
        self.lora_A = nn.Linear(base.in_features, rank, **wanted)
        self.lora_B = nn.Linear(rank, base.out_features, **wanted)

    def forward(self, x):
        result = self.base_layer(x)
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling
        return result.to(self.base_layer.weight.dtype)


def adapt(model, settings, dtype):
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if last in settings["target_modules"]:
            made = Lora(
                layer, settings["r"], settings["lora_alpha"], settings["lora_dropout"], dtype
            )
            setattr(model.get_submodule(parent), last, made)


def make(directory, dtype, device):
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    with torch.device(device):
        model = kind._from_config(config, dtype=dtype)
    adapter = Path(directory, "adapter_config.json")
    if adapter.exists():
        adapt(model, json.loads(adapter.read_text()), torch.float32)
    return model


def inputs(config, batch, tokens, dtype, train):
    def ids(size):
        return torch.randint(0, size, (batch, tokens), device="cuda")

    if config.model_type == "vit":
        size = config.image_size
        made = dict(
            pixel_values=torch.rand(
                batch, config.num_channels, size, size, device="cuda", dtype=dtype
            )
        )
        if train:
            made["labels"] = torch.zeros(batch, dtype=torch.long, device="cuda")
        return made
    if config.model_type == "whisper":
        frames = 2 * config.max_source_positions
        sound = torch.rand(batch, config.num_mel_bins, frames, device="cuda", dtype=dtype)
        key = "labels" if train else "decoder_input_ids"
        return {"input_features": sound, key: ids(config.vocab_size)}
    made = dict(input_ids=ids(config.vocab_size))
    if config.architectures[0].endswith("ForSequenceClassification"):
        if train:
            made["labels"] = torch.zeros(batch, dtype=torch.long, device="cuda")
    elif train:
        made["labels"] = ids(config.vocab_size)
    elif config.is_encoder_decoder:
        made["decoder_input_ids"] = ids(config.vocab_size)
    return made


def optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    if name == "adafactor":
        return transformers.Adafactor(parameters)
    return torch.optim.AdamW(parameters, lr=1e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--autocast")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    model = make(given.directory, dtype, "cuda")
    if not given.train:
        model.eval()
        with torch.inference_mode():
            for _ in range(2):
                model(**inputs(model.config, given.batch, given.tokens, dtype, False))
        return
    model.train()
    if given.checkpointing:
        model.config.use_cache = False
        model.gradient_checkpointing_enable()
        if any(isinstance(module, Lora) for module in model.modules()):
            model.enable_input_require_grads()
    wanted = [p for p in model.parameters() if p.requires_grad]
    steps = optimizer(given.optimizer, wanted)
    cast = torch.autocast(
        "cuda", getattr(torch, given.autocast or "bfloat16"), enabled=bool(given.autocast)
    )
    for _ in range(2):
        for _ in range(given.accumulation):
            batch = inputs(model.config, given.batch, given.tokens, dtype, True)
            with cast:
                loss = model(**batch).loss
            (loss / given.accumulation).backward()
        steps.step()
        steps.zero_grad()


if __name__ == "__main__":
    main()
