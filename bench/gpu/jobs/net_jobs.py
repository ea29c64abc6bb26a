"""Jobs for `net.py`: each makes a model and returns what one step of it does.

A job takes `small` (to try it without a GPU) and returns `step() -> tensor` (the loss, or what a pass of inference
gives) and the parameters that the step changes, or is made of.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

FREE_FIRST = False
"""Whether gradients are freed before the forward pass already, and not only before the backward pass."""


def train(parameters, loss_of, dtype=None, optimizer=torch.optim.AdamW, **options):
    parameters = [p for p in parameters if p.requires_grad]
    chosen = optimizer(parameters, **{"lr": 1e-4, **options})

    def step():
        if FREE_FIRST:
            chosen.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of()
        chosen.zero_grad(set_to_none=True)
        loss.backward()
        chosen.step()
        return loss.detach()

    return step, parameters


@contextlib.contextmanager
def on_gpu_in_bf16():
    """What is made in here is made there."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        yield
    torch.set_default_dtype(torch.float32)


def images(batch, size, classes=1000):
    return torch.randn(batch, 3, size, size, device="cuda"), torch.randint(classes, (batch,), device="cuda")  # fmt: skip


def ids_of(vocabulary, *shape):
    return torch.randint(vocabulary, shape, device="cuda")


def vision(name, batch, dtype=None):
    def job(small):
        import torchvision

        model = getattr(torchvision.models, name)().cuda()
        x, y = images(2 if small else batch, 64 if small else 224)
        return train(model.parameters(), lambda: F.cross_entropy(model(x).float(), y), dtype)

    return job


def gpt2(small):
    import transformers

    size = dict(n_layer=2, n_embd=64, n_head=2, vocab_size=512) if small else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, **size)).cuda()  # fmt: skip
    ids = ids_of(model.config.vocab_size, 2 if small else 8, 64 if small else 1024)
    return train(model.parameters(), lambda: model(input_ids=ids, labels=ids).loss, torch.bfloat16)


def llama_1b(small):
    """1.1 billion parameters in bf16, and AdamW's state in bf16 too."""
    import transformers

    size = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4)  # fmt: skip
    if small:
        size = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)  # fmt: skip
    with on_gpu_in_bf16():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **size))
    ids = ids_of(model.config.vocab_size, 2 if small else 4, 64 if small else 1024)
    return train(model.parameters(), lambda: model(input_ids=ids, labels=ids).loss)


def t5_small(small):
    import transformers

    size = dict(num_layers=2, d_model=64, d_ff=64, vocab_size=512) if small else dict(num_layers=6)
    config = transformers.T5Config(decoder_start_token_id=0, use_cache=False, dropout_rate=0.0, **size)  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).cuda()
    ids = ids_of(config.vocab_size, 2 if small else 32, 32 if small else 256)
    return train(model.parameters(), lambda: model(input_ids=ids, labels=ids).loss, torch.bfloat16)


def lora(small):
    """A frozen model of 1.1 billion parameters with trained additions of low rank."""
    import transformers

    size = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4)  # fmt: skip
    if small:
        size = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)  # fmt: skip
    with on_gpu_in_bf16():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **size))
    model.requires_grad_(False)

    class Added(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.down = nn.Linear(inner.in_features, 8, bias=False, dtype=torch.bfloat16)
            self.up = nn.Linear(8, inner.out_features, bias=False, dtype=torch.bfloat16)

        def forward(self, x):
            return self.inner(x) + self.up(self.down(x))

    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Added(getattr(layer.self_attn, name)))
    model = model.cuda()
    ids = ids_of(model.config.vocab_size, 2 if small else 4, 64 if small else 1024)
    return train(model.parameters(), lambda: model(input_ids=ids, labels=ids).loss)


def unet(small):
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())  # fmt: skip

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([block(3, 32), block(32, 64), block(64, 128)])
            self.middle = block(128, 128)
            self.up = nn.ModuleList([block(256, 64), block(128, 32), block(64, 32)])
            self.last = nn.Conv2d(32, 3, 1)

        def forward(self, x):
            kept = []
            for down in self.down:
                x = down(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x)
            for up, other in zip(self.up, reversed(kept)):
                x = up(torch.cat([x.repeat_interleave(2, 2).repeat_interleave(2, 3), other], 1))
            return self.last(x)

    model = UNet().cuda()
    x = images(2 if small else 16, 32 if small else 192)[0]
    return train(model.parameters(), lambda: F.mse_loss(model(x), x))


def lstm(small):
    embed, net, head = nn.Embedding(20000, 1024), nn.LSTM(1024, 1024, 3, batch_first=True), nn.Linear(1024, 20000)  # fmt: skip
    model = nn.ModuleList((embed, net, head)).cuda()
    ids = ids_of(20000, 4 if small else 64, 16 if small else 128)
    return train(model.parameters(), lambda: F.cross_entropy(head(net(embed(ids))[0]).flatten(0, 1), ids.flatten()))  # fmt: skip


def adam_mlp(small):
    """Nearly all of it is parameters, gradients and Adam's state."""
    width = 64 if small else 8192
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(width, width), nn.GELU()))).cuda()  # fmt: skip
    x = torch.randn(1024, width, device="cuda")
    return train(model.parameters(), lambda: model(x).square().mean(), optimizer=torch.optim.Adam)


def decoder(small):
    """Inference: 16 new tokens a step, greedily, by a bf16 decoder of 1.9 billion parameters."""
    import transformers

    size = dict(vocab_size=32000, hidden_size=2560, intermediate_size=6912, num_hidden_layers=24, num_attention_heads=20)  # fmt: skip
    if small:
        size = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)  # fmt: skip
    with on_gpu_in_bf16():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).eval()
    prompt = ids_of(model.config.vocab_size, 4, 64)

    def step():
        with torch.no_grad():
            return model.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0).double().mean()  # fmt: skip

    return step, []


JOBS = {
    "gpt2": gpt2,
    "resnet50": vision("resnet50", 64),
    "llama_1b": llama_1b,
    "t5_small": t5_small,
    "swin_t": vision("swin_t", 64, torch.bfloat16),
    "resnet152": vision("resnet152", 32, torch.bfloat16),
    "unet": unet,
    "lstm": lstm,
    "adam_mlp": adam_mlp,
    "vit_b_16": vision("vit_b_16", 64, torch.bfloat16),
    "lora": lora,
    "decoder": decoder,
}
