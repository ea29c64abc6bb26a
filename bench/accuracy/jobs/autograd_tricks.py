"""What people do to autograd: checkpoints of several kinds, packed tensors, own functions, transforms, accumulation."""

import functools
import itertools

import torch
import torchvision
import transformers as T
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from job import device, job, main, pick, small
from parts import Block, CrossUNet, built


@job()
def reentrant_segments_of_dense_net():
    """The old checkpoint: four segments of a network with batch norm and dropout, random state kept."""
    body = torchvision.models.densenet121(num_classes=100, drop_rate=0.1).to(device).train()
    layers = nn.Sequential(*body.features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    size = pick(224, 64)
    for _ in range(4):
        x = torch.randn(pick(96, 2), 3, size, size, device=device, requires_grad=True)
        y = torch.randint(0, 100, (len(x),), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            h = checkpoint_sequential(layers, 4, x, use_reentrant=True)
            loss = F.cross_entropy(body.classifier(h), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def keep_matrix_products(context, operator, *args, **kwargs):
    kept = {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    }
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


@job()
def selective_checkpoint_keeps_products():
    """Every second block is recomputed, all but its matrix products and attention."""
    width = pick(1024, 48)
    embed = nn.Embedding(pick(16000, 60), width)
    blocks = nn.ModuleList(Block(width, pick(16, 4), causal=True) for _ in range(pick(10, 2)))
    head = nn.Linear(width, pick(16000, 60))
    model = nn.ModuleList([embed, blocks, head]).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_matrix_products)
    for _ in range(4):
        ids = torch.randint(0, embed.num_embeddings, (pick(8, 2), pick(1024, 9)), device=device)
        x = embed(ids)
        for i, block in enumerate(blocks):
            if i % 2:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        loss = F.cross_entropy(head(x)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Reversible(torch.autograd.Function):
    """A chain of reversible blocks: inputs are computed again from the outputs in the backward pass."""

    @staticmethod
    def forward(ctx, x, blocks, *params):
        a, b = x.chunk(2, -1)
        for f, g in blocks:
            a = a + f(b)
            b = b + g(a)
        ctx.blocks, ctx.out = blocks, (a.detach(), b.detach())
        return torch.cat([a, b], -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.out
        ctx.out = None
        da, db = grad.chunk(2, -1)
        found = {}
        for f, g in reversed(ctx.blocks):
            for first, layer in ((True, g), (False, f)):
                with torch.enable_grad():
                    source = (a if first else b).detach().requires_grad_()
                    y = layer(source)
                weights = list(layer.parameters())
                back = torch.autograd.grad(y, [source, *weights], db if first else da)
                found.update(zip(weights, back[1:]))
                if first:
                    b, da = b - y.detach(), da + back[0]
                else:
                    a, db = a - y.detach(), db + back[0]
        flat = [found[p] for f, g in ctx.blocks for p in (*f.parameters(), *g.parameters())]
        return torch.cat([da, db], -1), None, *flat


@job()
def reversible_transformer():
    """No activations are kept but the last ones, as in the Reformer."""
    width = pick(512, 24)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    def perceptron():
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    pairs = [nn.ModuleList([Attention(), perceptron()]) for _ in range(pick(16, 2))]
    blocks = nn.ModuleList(pairs).to(device)
    embed = nn.Embedding(256, 2 * width).to(device)
    head = nn.Linear(2 * width, 256).to(device)
    params = [p for f, g in blocks for p in (*f.parameters(), *g.parameters())]
    optimizer = torch.optim.Adam([*params, *embed.parameters(), *head.parameters()], lr=1e-4)
    for _ in range(4):
        ids = torch.randint(0, 256, (pick(4, 2), pick(4096, 12)), device=device)
        h = Reversible.apply(embed(ids), blocks, *params)
        loss = F.cross_entropy(head(h)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def pack(x):
    if x.dtype != torch.float32 or x.numel() < 4096 or isinstance(x, nn.Parameter):
        return x
    low, high = x.aminmax()
    scale = ((high - low) / 255).clamp_(min=1e-8)
    return ((x - low) / scale).round_().to(torch.uint8), low, scale


def unpack(packed):
    if isinstance(packed, torch.Tensor):
        return packed
    codes, low, scale = packed
    return codes.float().mul_(scale).add_(low)


@job()
def activations_packed_to_bytes():
    """Saved tensors are kept in eight bits, except the parameters."""
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights_backbone=None, num_classes=19
    )
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    height, width = pick(384, 64), pick(768, 64)
    for _ in range(4):
        x = torch.randn(pick(12, 2), 3, height, width, device=device)
        y = torch.randint(0, 19, (len(x), height, width), device=device)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = F.cross_entropy(model(x)["out"], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def tangent_kernel_of_convolutions():
    """Jacobians of every picture by vmap of jacrev, contracted into an empirical tangent kernel."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 8 * 8, 10),
    )
    net.to(device)
    params = {k: p.detach() for k, p in net.named_parameters()}

    def single(params, x):
        return functional_call(net, params, (x.unsqueeze(0),)).squeeze(0)

    jacobians = vmap(jacrev(single), (None, 0))
    for step in range(3):
        first, second = (torch.randn(pick(n, 2), 3, 32, 32, device=device) for n in (128, 64))
        one, two = jacobians(params, first), jacobians(params, second)
        kernel = sum(
            torch.einsum("naf,mbf->nmab", one[k].flatten(2), two[k].flatten(2)) for k in params
        )
        del one, two
        if step == 2:  # The change of the outputs along one direction, by forward mode.
            change = {k: torch.randn_like(p) for k, p in params.items()}
            jvp(lambda p: functional_call(net, p, (first,)), (params,), (change,))
        yield kernel.diagonal(dim1=2, dim2=3).sum(2).trace().item()


class JaggedEncoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        h = self.norm1(x)
        split = lambda t: t.unflatten(-1, [self.heads, -1]).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q(h)), split(self.k(h)), split(self.v(h)))
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


@job()
def jagged_nested_sentences():
    """Sentences of all lengths in one nested tensor, without padding; lengths are drawn on the host."""
    width, classes = pick(768, 32), 20
    embed = nn.Embedding(pick(30000, 60), width)
    layers = nn.Sequential(*[JaggedEncoder(width, pick(12, 4)) for _ in range(pick(6, 2))])
    head = nn.Linear(width, classes)
    model = nn.ModuleList([embed, layers, head]).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(7)
    for _ in range(4):
        lengths = torch.randint(pick(20, 2), pick(500, 9), (pick(64, 3),), generator=draw).tolist()
        rows = [torch.randint(0, embed.num_embeddings, (n,), device=device) for n in lengths]
        ids = torch.nested.nested_tensor(rows, layout=torch.jagged)
        h = layers(embed(ids))
        pooled = torch.stack([row.mean(0) for row in h.unbind()])
        y = torch.randint(0, classes, (len(rows),), device=device)
        loss = F.cross_entropy(head(pooled).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def gradients_summed_in_float32():
    """A bfloat16 model; a hook adds each gradient to a float32 buffer, over four small batches a step."""
    config = T.GPTNeoXConfig(
        vocab_size=pick(50304, 100),
        hidden_size=pick(1024, 32),
        intermediate_size=pick(4096, 64),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(16, 4),
        use_cache=False,
    )
    model = built(T.GPTNeoXForCausalLM, config, torch.bfloat16).train()
    sums = {p: torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()}
    masters = {p: p.detach().float() for p in model.parameters()}
    optimizer = torch.optim.AdamW(list(masters.values()), lr=1e-4)

    def hook(p):
        sums[p].add_(p.grad)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        for _ in range(4):
            ids = torch.randint(0, config.vocab_size, (pick(4, 2), pick(768, 12)), device=device)
            (model(input_ids=ids, labels=ids).loss / 4).backward()
        with torch.no_grad():
            for p, master in masters.items():
                master.grad = sums[p]
            optimizer.step()
            for p, master in masters.items():
                p.copy_(master)
                sums[p].zero_()
        yield


@job()
def cached_gradients_large_contrast():
    """GradCache: embed all without a graph, take the loss's gradients, and embed again part by part."""
    image = torchvision.models.resnet50(num_classes=pick(256, 16)).to(device).train()
    config = T.DistilBertConfig(
        vocab_size=pick(30000, 60),
        dim=pick(768, 24),
        n_layers=pick(6, 1),
        n_heads=12,
        hidden_dim=pick(3072, 32),
    )
    text = built(T.DistilBertModel, config).train()
    project = nn.Linear(config.dim, pick(256, 16)).to(device)
    modules = nn.ModuleList([image, text, project])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-4)
    encoders = (
        lambda x: F.normalize(image(x).float(), dim=1),
        lambda ids: F.normalize(
            project(text(input_ids=ids).last_hidden_state[:, 0]).float(), dim=1
        ),
    )
    size, count, part = pick(160, 64), pick(512, 4), pick(64, 2)
    for _ in range(3):
        batch = (
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, config.vocab_size, (count, pick(64, 6)), device=device),
        )
        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                kept = [torch.cat([e(c) for c in b.split(part)]) for e, b in zip(encoders, batch)]
            a, b = (k.requires_grad_() for k in kept)
            logits = a @ b.T / 0.07
            target = torch.arange(count, device=device)
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        loss.backward()
        for encode, data, vectors in zip(encoders, batch, (a, b)):
            for x, grad in zip(data.split(part), vectors.grad.split(part)):
                with torch.autocast(device, dtype=torch.bfloat16):
                    again = encode(x)
                again.backward(grad)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@job()
def scaler_with_two_models_and_losses():
    """fp16 with the scaler's default scale: a denoiser and an autoencoder share a loss, each has its optimizer."""
    down = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.GroupNorm(8, o), nn.SiLU())
    up = lambda i, o: nn.Sequential(
        nn.ConvTranspose2d(i, o, 4, 2, 1), nn.GroupNorm(8, o), nn.SiLU()
    )
    coder = nn.ModuleDict(
        dict(
            encode=nn.Sequential(down(3, 64), down(64, 128), down(128, 256), nn.Conv2d(256, 4, 1)),
            decode=nn.Sequential(
                nn.Conv2d(4, 256, 1), up(256, 128), up(128, 64), up(64, 32), nn.Conv2d(32, 3, 1)
            ),
        )
    ).to(device)
    denoiser = CrossUNet(4, pick((96, 192, 384), (16, 32)), pick(256, 32), pick(8, 4)).to(device)
    optimizers = [
        torch.optim.Adam(coder.parameters(), lr=1e-4),
        torch.optim.AdamW(denoiser.parameters(), lr=1e-4),
    ]
    scaler = torch.amp.GradScaler(device, enabled=not small)
    size = pick(256, 32)
    for _ in range(5):
        x = torch.rand(pick(16, 2), 3, size, size, device=device)
        text = torch.randn(len(x), pick(32, 4), pick(256, 32), device=device)
        t = torch.randint(0, 1000, (len(x),), device=device)
        with torch.autocast(device, dtype=torch.float16, enabled=not small):
            z = coder["encode"](x)
            noise = torch.randn_like(z)
            level = (t / 1000).view(-1, 1, 1, 1)
            noisy = (1 - level) * z.detach() + level * noise
            rebuilt = F.l1_loss(coder["decode"](z).float(), x)
            guessed = F.mse_loss(denoiser(noisy.to(x.dtype), t, text).float(), noise.float())
        scaler.scale(rebuilt).backward()
        scaler.scale(guessed).backward()
        for optimizer, module in zip(optimizers, (coder, denoiser)):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        yield


@job()
def truncated_backpropagation_of_lstm():
    """States are detached every few characters, and the graph of the last piece is kept for a second loss."""
    width = pick(1536, 24)
    embed = nn.Embedding(128, 128).to(device)
    cells = nn.ModuleList([nn.LSTMCell(128, width), nn.LSTMCell(width, width)]).to(device)
    head, value = nn.Linear(width, 128).to(device), nn.Linear(width, 1).to(device)
    modules = nn.ModuleList([embed, cells, head, value])
    params = list(modules.parameters())
    optimizer = torch.optim.RMSprop(params, lr=1e-3)
    batch, piece = pick(256, 2), pick(32, 3)
    state = [tuple(torch.zeros(batch, width, device=device) for _ in range(2)) for _ in cells]
    text = torch.randint(0, 128, (batch, 4 * piece + 1), device=device)
    for start in itertools.islice(itertools.count(0, piece), 4):
        state = [tuple(s.detach() for s in pair) for pair in state]
        tops = []
        for i in range(start, start + piece):
            x = embed(text[:, i])
            for n, cell in enumerate(cells):
                state[n] = cell(x, state[n])
                x = state[n][0]
            tops.append(x)
        h = torch.stack(tops, 1)
        loss = F.cross_entropy(
            head(h).flatten(0, 1), text[:, start + 1 : start + piece + 1].flatten()
        )
        grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        guess = F.mse_loss(value(h).squeeze(2), loss.detach().expand(batch, piece))
        more = torch.autograd.grad(guess, params, allow_unused=True)
        for p, a, b in zip(params, grads, more):
            p.grad = a if b is None else b if a is None else a.add_(b, alpha=0.5)
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    main()
