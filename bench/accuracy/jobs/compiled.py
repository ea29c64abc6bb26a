"""torch.compile: whole models, single blocks, CUDA graphs, changing shapes, optimizers, flex attention."""

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from job import device, job, main, pick, small
from parts import GPT, CrossUNet, built

VOCAB = pick(32000, 100)


def autocast():
    return torch.autocast(device, dtype=torch.bfloat16)


def gpt(depth=6):
    return GPT(VOCAB, pick(768, 48), pick(depth, 2), 12, 2048).to(device)


def train(model, batches, loss, optimizer=None):
    """Trains with mixed precision; `loss(batch)` calls whatever is compiled."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in batches:
        with autocast():
            value = loss(batch)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        yield


def token_batches(batch, lengths):
    for length in lengths:
        yield torch.randint(0, VOCAB, (pick(batch, 2), pick(length, length // 50)), device=device)


@job()
def compiled_vit_training():
    model = torchvision.models.vit_b_16(num_classes=100).to(device).train()
    fast = torch.compile(model)
    batches = (torch.randn(pick(64, 1), 3, 224, 224, device=device) for _ in range(4))
    target = torch.randint(0, 100, (pick(64, 1),), device=device)
    yield from train(model, batches, lambda x: F.cross_entropy(fast(x), target))


@job()
def compiled_llama_training():
    width = pick(1024, 64)
    config = T.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=pick(2816, 96),
        num_hidden_layers=pick(6, 2),
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = built(T.LlamaForCausalLM, config).train()
    fast = torch.compile(model)
    batches = token_batches(8, [1024] * 4)
    yield from train(model, batches, lambda ids: fast(input_ids=ids, labels=ids).loss)


@job()
def reduce_overhead_training():
    """Forward and backward become CUDA graphs."""
    model = gpt()
    fast = torch.compile(model, mode="reduce-overhead")
    yield from train(model, token_batches(8, [512] * 6), lambda ids: fast(ids, ids))


class Decoder(nn.Module):
    """One token through attention over a cache of fixed size."""

    def __init__(self, width, depth, heads, length, batch):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(depth)])
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
                for _ in range(depth)
            ]
        )
        self.heads = heads
        shape = (depth, 2, batch, heads, length, width // heads)
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, ids, at):
        x = self.embed(ids)
        seen = torch.arange(self.cache.shape[4], device=ids.device) <= at[:, None]
        for qkv, mlp, cache in zip(self.qkv, self.mlp, self.cache):
            q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, 2))
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=seen)
            x = x + y.transpose(1, 2).flatten(2)
            x = x + mlp(x)
        return x[:, -1] @ self.embed.weight.T


@job()
def reduce_overhead_decoding():
    """Prefill without, each token with a CUDA graph."""
    batch = pick(16, 2)
    model = Decoder(pick(1536, 48), pick(8, 2), 12, pick(1024, 24), batch).to(device).half()
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for length in (pick(512, 8), pick(256, 6)):
        with torch.no_grad():
            ids = torch.randint(0, VOCAB, (batch, length), device=device)
            logits = model(ids, torch.arange(length, device=device))
            for i in range(pick(40, 3)):
                token = logits.argmax(1, keepdim=True).clone()
                logits = step(token, torch.tensor([length + i], device=device))
            logits.float().softmax(1).max().item()
        yield


@job()
def compiled_dynamic_lengths():
    """Batches of changing length: one graph with symbolic sizes."""
    model = gpt()
    fast = torch.compile(model, dynamic=True)
    batches = token_batches(8, (600, 900, 1200, 750, 1100))
    yield from train(model, batches, lambda ids: fast(ids, ids))


@job()
def compiled_automatic_dynamic():
    """The default: a static graph first, and a dynamic one from the second length on."""
    config = T.BertConfig(
        hidden_size=pick(768, 24),
        num_hidden_layers=pick(4, 1),
        num_attention_heads=12,
        intermediate_size=pick(3072, 48),
        vocab_size=VOCAB,
        hidden_dropout_prob=0.1,
    )
    model = built(T.BertForMaskedLM, config).train()
    fast = torch.compile(model)
    batches = token_batches(32, (256, 384, 320, 512))
    yield from train(
        model,
        batches,
        lambda ids: fast(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss,
    )


@job()
def compiled_optimizer_step():
    """AdamW's step is compiled, and the clipping of gradients with it."""
    model = gpt(depth=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    @torch.compile
    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for ids in token_batches(8, [768] * 4):
        with autocast():
            loss = model(ids, ids)
        loss.backward()
        update()
        optimizer.zero_grad()
        yield


@job()
def flex_attention_documents():
    """Packed documents: a causal sliding window within each document."""
    width, heads, length, batch = pick(768, 32), pick(12, 2), pick(4096, 256), pick(4, 1)
    attend = flex_attention if small else torch.compile(flex_attention)
    document = (torch.arange(length, device=device) // pick(700, 60)).int()

    window = pick(512, 40)

    def rule(b, h, q, k):
        return (q >= k) & (q - k < window) & (document[q] == document[k])

    mask = create_block_mask(rule, None, None, length, length, device=device)
    qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(pick(8, 2))]).to(device)
    mlp = nn.ModuleList(
        [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in qkv
        ]
    ).to(device)
    model = nn.ModuleList([qkv, mlp])

    def loss(x):
        for a, b in zip(qkv, mlp):
            h = a(F.layer_norm(x, (width,)))
            q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in h.chunk(3, 2))
            y = attend(q, k, v, block_mask=mask)
            x = x + y.transpose(1, 2).flatten(2)
            x = x + b(F.layer_norm(x, (width,)))
        return x.float().pow(2).mean()

    batches = (torch.randn(batch, length, width, device=device) for _ in range(4))
    if small:  # There is no backward of flex attention on a CPU.
        with torch.no_grad():
            loss(next(batches))
        return
    yield from train(model, batches, loss)


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy whose logits are made chunk by chunk; the gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        grad_x, grad_w = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        total = x.new_zeros((), dtype=torch.float32)
        for a, b, g in zip(x.chunk(8), labels.chunk(8), grad_x.chunk(8)):
            logits = (a @ weight.T).float()
            top = logits.logsumexp(1, keepdim=True)
            total += (top.squeeze(1) - logits.gather(1, b[:, None]).squeeze(1)).sum()
            p = (logits - top).exp_()
            p.scatter_add_(1, b[:, None], torch.full_like(top, -1.0))
            p = (p / len(labels)).to(x.dtype)
            g.copy_(p @ weight)
            grad_w += p.T @ a
        ctx.save_for_backward(grad_x, grad_w.to(weight.dtype))
        return total / len(labels)

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_w = ctx.saved_tensors
        return grad * grad_x, grad * grad_w, None


@job()
def compiled_custom_function():
    """A custom autograd.Function inside a compiled training step, all in bfloat16."""
    model = gpt().bfloat16()

    def body(ids):
        x = model.token(ids) + model.place.weight[: ids.shape[1]]
        for block in model.blocks:
            x = block(x)
        return model.norm(x)[:, :-1].flatten(0, 1)

    fast = torch.compile(
        lambda ids: ChunkedLoss.apply(body(ids), model.head.weight, ids[:, 1:].flatten())
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for ids in token_batches(8, [1024] * 4):
        loss = fast(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def compiled_blocks_with_checkpointing():
    """Each block is compiled on its own and recomputed in the backward pass."""
    model = gpt(depth=12)
    for block in model.blocks:
        block.compile()

    def loss(ids):
        x = model.token(ids) + model.place.weight[: ids.shape[1]]
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = model.head(model.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    yield from train(model, token_batches(8, [1024] * 4), loss)


@job()
def activation_memory_budget_half():
    """The partitioner recomputes until half of the activations' memory is left."""
    import torch._functorch.config as settings

    settings.activation_memory_budget = 0.5
    model = gpt()
    fast = torch.compile(model)
    yield from train(model, token_batches(12, [1024] * 4), lambda ids: fast(ids, ids))


@job()
def compiled_with_graph_breaks():
    """A value is read in the middle of the forward pass, and a module is left out of compiling."""
    net = torchvision.models.resnet34(num_classes=100).to(device).train()
    head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100)).to(device)
    net.fc = nn.Identity()
    seen = []

    @torch.compiler.disable
    def note(x):
        seen.append(x.detach().abs().mean().item())

    @torch.compile
    def forward(x):
        h = net(x)
        note(h)
        if h.sum().isnan().item():
            return head(torch.nan_to_num(h))
        return head(h)

    model = nn.ModuleList([net, head])
    target = torch.randint(0, 100, (pick(96, 2),), device=device)
    res = pick(224, 64)
    batches = (torch.randn(len(target), 3, res, res, device=device) for _ in range(4))
    yield from train(model, batches, lambda x: F.cross_entropy(forward(x), target))


@job()
def compiled_unet_sampling():
    """A diffusion model in half precision, channels last, compiled; the loop around it is not."""
    unet = CrossUNet(4, pick((192, 384, 768), (16, 32)), pick(768, 32), pick(12, 4)).to(device)
    unet = unet.half().eval().to(memory_format=torch.channels_last)
    fast = torch.compile(unet)
    res, half = pick(64, 8), torch.float16
    for _ in range(2):
        with torch.no_grad():
            text = torch.randn(pick(16, 2), 77, pick(768, 32), device=device, dtype=half)
            x = torch.randn(len(text), 4, res, res, device=device, dtype=half)
            x = x.to(memory_format=torch.channels_last)
            for step in range(pick(8, 2)):
                t = torch.full((len(x),), 900 - 100 * step, device=device)
                x = 0.9 * x + 0.1 * fast(x, t, text)
        yield


if __name__ == "__main__":
    main()
