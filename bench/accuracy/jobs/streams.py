"""Work on several streams: prefetching, branches, offloading, copies to the host, CUDA graphs by hand.

Nothing here waits for the GPU after a step but what the job itself does: how late a stream is, is a part of the job.
"""

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import GPT, Block, built

cuda = torch.cuda


class Prefetcher:
    """Copies the next batch on a stream of its own while the model computes, as in NVIDIA's examples."""

    def __init__(self, batches, change):
        self.batches, self.change, self.stream = iter(batches), change, cuda.Stream()
        self.load()

    def load(self):
        self.next = next(self.batches, None)
        if self.next is not None:
            with cuda.stream(self.stream):
                self.next = [t.to(device, non_blocking=True) for t in self.next]
                self.next[0] = self.change(self.next[0])

    def __iter__(self):
        while self.next is not None:
            cuda.current_stream().wait_stream(self.stream)
            now = self.next
            for t in now:
                t.record_stream(cuda.current_stream())
            self.load()
            yield now


def host_images(steps, batch, res=224, classes=100):
    """Batches of bytes in pinned memory, as a DataLoader hands them on."""
    res = pick(res, 64)
    for _ in range(steps):
        x = torch.randint(0, 256, (pick(batch, 2), 3, res, res), dtype=torch.uint8)
        yield x.pin_memory(), torch.randint(0, classes, (len(x),)).pin_memory()


def normalize(x):
    return x.float().div_(255).sub_(0.45).div_(0.225)


@job(sync=False)
def prefetch_bytes_classifier():
    """The host never waits: how many batches are on their way depends on the GPU alone."""
    model = torchvision.models.resnet50(num_classes=100).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ready = list(host_images(8, 64))
    for x, y in Prefetcher(ready, normalize):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield
    loss.item()


@job(sync=False)
def prefetch_with_loss_read():
    """The loss is read in each step, so that no stream is later than a step."""
    model = torchvision.models.convnext_tiny(num_classes=100).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in Prefetcher(host_images(6, 32), normalize):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job(sync=False)
def two_towers_two_streams():
    """Image and text encoders run side by side and meet in a contrastive loss."""
    text = nn.Embedding(pick(30000, 50), pick(512, 24)).to(device)
    blocks = nn.ModuleList([Block(pick(512, 24), 8) for _ in range(pick(6, 1))]).to(device)
    image = torchvision.models.resnet50(num_classes=pick(512, 24)).to(device).train()
    model = nn.ModuleList([text, blocks, image])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = cuda.Stream()
    for _ in range(5):
        x = torch.randn(pick(64, 2), 3, pick(224, 64), pick(224, 64), device=device)
        ids = torch.randint(0, text.num_embeddings, (len(x), pick(77, 5)), device=device)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            h = text(ids)
            for block in blocks:
                h = block(h)
            b = F.normalize(h.mean(1), dim=1)
        a = F.normalize(image(x), dim=1)
        cuda.current_stream().wait_stream(side)
        b.record_stream(cuda.current_stream())
        logits = 20 * a @ b.T
        target = torch.arange(len(x), device=device)
        loss = F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield
        cuda.synchronize()


@job(sync=False)
def branch_per_stream_inference():
    """An ensemble in half precision, each member on a stream of its own."""
    names = ("resnet34", "densenet121", "mobilenet_v3_large", "efficientnet_b0")
    members = [getattr(torchvision.models, n)().to(device).half().eval() for n in names]
    streams = [cuda.Stream() for _ in members]
    for _ in range(4):
        with torch.inference_mode():
            x = torch.randn(pick(128, 2), 3, pick(224, 64), pick(224, 64), device=device).half()
            votes = []
            for model, stream in zip(members, streams):
                stream.wait_stream(cuda.current_stream())
                with cuda.stream(stream):
                    votes.append(model(x).float().softmax(1))
            for stream in streams:
                cuda.current_stream().wait_stream(stream)
            best = torch.stack(votes).mean(0).argmax(1).cpu()
        yield int(best[0])


@job(sync=False)
def activations_offloaded_to_host():
    """Saved tensors go to pinned memory in the forward pass and come back in the backward pass."""
    model = GPT(pick(32000, 100), pick(768, 48), pick(10, 2), 12, 1024).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        ids = torch.randint(0, pick(32000, 100), (pick(4, 1), pick(1024, 12)), device=device)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job(sync=False)
def weights_streamed_from_host():
    """Layers live in pinned memory; the next one is copied while the present one computes."""
    width, depth = pick(3072, 48), pick(16, 3)
    layer = Block(width, 24).half().to(device).eval()
    names = [n for n, _ in layer.named_parameters()]
    host = [
        {
            n: torch.full_like(p, 0.01, device="cpu").pin_memory()
            for n, p in layer.named_parameters()
        }
        for _ in range(pick(4, 2))
    ]
    copy = cuda.Stream()

    def fetch(i):
        with cuda.stream(copy):
            return {n: host[i % len(host)][n].to(device, non_blocking=True) for n in names}

    for _ in range(3):
        with torch.no_grad():
            x = torch.randn(pick(16, 1), pick(1024, 8), width, device=device).half()
            after = fetch(0)
            for i in range(depth):
                cuda.current_stream().wait_stream(copy)
                now = after
                if i + 1 < depth:
                    after = fetch(i + 1)
                x = torch.func.functional_call(layer, now, (x,))
                for t in now.values():
                    t.record_stream(cuda.current_stream())
        yield x.float().mean().item()


@job(sync=False)
def microbatch_pipeline_with_events():
    """Two stages on two streams of one GPU, four micro-batches, handed on by events."""
    width = pick(1024, 48)
    stages = [
        nn.Sequential(*[Block(width, 16) for _ in range(pick(6, 1))]).to(device) for _ in "ab"
    ]
    optimizer = torch.optim.AdamW([p for s in stages for p in s.parameters()], lr=1e-4)
    first, second = cuda.Stream(), cuda.Stream()
    for _ in range(4):
        x = torch.randn(pick(16, 4), pick(512, 8), width, device=device)
        first.wait_stream(cuda.current_stream())
        second.wait_stream(cuda.current_stream())
        losses = []
        for part in x.chunk(4):
            with cuda.stream(first), torch.autocast(device, dtype=torch.bfloat16):
                h = stages[0](part)
                done = cuda.Event()
                done.record(first)
            second.wait_event(done)
            with cuda.stream(second), torch.autocast(device, dtype=torch.bfloat16):
                h.record_stream(second)
                losses.append(stages[1](h).float().pow(2).mean() / 4)
        cuda.current_stream().wait_stream(first)
        cuda.current_stream().wait_stream(second)
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        cuda.synchronize()
        yield


@job(sync=False)
def embeddings_copied_to_pinned_host():
    """A corpus is embedded; results are copied without waiting into one pinned array, with events."""
    config = T.BertConfig(
        hidden_size=pick(1024, 24),
        num_hidden_layers=pick(12, 1),
        num_attention_heads=pick(16, 12),
        intermediate_size=pick(4096, 48),
    )
    model = built(T.BertModel, config, torch.float16).eval()
    copies, batch = cuda.Stream(), pick(64, 2)
    out = torch.empty(12 * batch, config.hidden_size, dtype=torch.float16).pin_memory()
    waiting = []
    for i, length in enumerate((128, 512, 256, 384, 64, 512, 320, 448, 192, 512, 96, 288)):
        ids = torch.randint(5, 30000, (batch, pick(length, 8))).pin_memory()
        with torch.no_grad():
            ids = ids.to(device, non_blocking=True)
            h = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            vectors = F.normalize(h.mean(1).float(), dim=1).half()
        copies.wait_stream(cuda.current_stream())
        with cuda.stream(copies):
            out[i * batch : (i + 1) * batch].copy_(vectors, non_blocking=True)
            vectors.record_stream(copies)
            done = cuda.Event()
            done.record()
        waiting.append(done)
        if len(waiting) > 2:
            waiting.pop(0).synchronize()
        yield
    copies.synchronize()


@job(sync=False)
def gradient_buckets_on_side_stream():
    """Gradients are gathered into buckets and averaged on a stream for communication, as DDP does."""
    model = GPT(pick(32000, 100), pick(1024, 48), pick(10, 2), pick(16, 12), 1024).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    talk, bucket, size = cuda.Stream(), [], 0

    def send():
        nonlocal bucket, size
        talk.wait_stream(cuda.current_stream())
        with cuda.stream(talk):
            grads = [p.grad for p in bucket]
            flat = torch.cat([g.flatten() for g in grads]).bfloat16()
            flat = flat.mul_(0.5).add_(flat, alpha=0.5).float()
            for g, part in zip(grads, flat.split([g.numel() for g in grads])):
                g.copy_(part.view_as(g))
                g.record_stream(talk)
        bucket, size = [], 0

    def hook(p):
        nonlocal size
        bucket.append(p)
        size += p.numel() * 4
        if size > pick(64 << 20, 1000):
            send()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(4):
        ids = torch.randint(0, pick(32000, 100), (pick(8, 2), pick(768, 12)), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids, ids)
        loss.backward()
        if bucket:
            send()
        cuda.current_stream().wait_stream(talk)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


@job(sync=False)
def snapshot_of_weights_on_side_stream():
    """Every second step the weights are cloned and copied to the host while training goes on."""
    model = torchvision.models.vit_b_16(num_classes=100).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    saver = cuda.Stream()
    for step in range(5):
        x = torch.randn(pick(48, 1), 3, 224, 224, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            saver.synchronize()
            saver.wait_stream(cuda.current_stream())
            with cuda.stream(saver):
                clones = [p.detach().clone() for p in model.parameters()]
                saved = [c.to("cpu", non_blocking=True) for c in clones]
            cuda.current_stream().wait_stream(saver)
            del clones
        yield loss.item()
    saver.synchronize()
    len(saved)


@job(sync=False)
def graph_per_batch_size():
    """Inference with a CUDA graph per batch size, captured by hand into one pool."""
    width = pick(1024, 48)
    model = nn.Sequential(*[Block(width, 16) for _ in range(pick(12, 1))]).to(device).half().eval()
    pool, graphs = cuda.graph_pool_handle(), {}
    side = cuda.Stream()
    with torch.no_grad():
        for batch in (pick(64, 4), pick(32, 2), pick(8, 1)):
            x = torch.zeros(batch, pick(256, 4), width, device=device, dtype=torch.float16)
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for _ in range(2):
                    model(x)
            cuda.current_stream().wait_stream(side)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=pool):
                y = model(x)
            graphs[batch] = graph, x, y
            yield
        for batch in list(graphs) * 2:
            graph, x, y = graphs[batch]
            x.copy_(torch.randn_like(x))
            graph.replay()
            y.float().mean().item()
            yield


@job(sync=False)
def graph_of_forward_and_backward():
    """Gradients by a captured graph, the optimizer outside; a second graph for the evaluation."""
    width = pick(1536, 48)
    model = nn.Sequential(*[Block(width, 12) for _ in range(pick(6, 1))]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(pick(16, 2), pick(256, 4), width, device=device)

    def forward():
        return (model(x) - x).pow(2).mean()

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            forward().backward()
    cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    train, evaluate = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(train):
        loss = forward()
        loss.backward()
    with torch.no_grad(), cuda.graph(evaluate):
        score = forward()
    for _ in range(4):
        x.copy_(torch.randn_like(x))
        train.replay()
        optimizer.step()
        evaluate.replay()
        yield loss.item() + score.item()


@job(sync=False)
def teacher_on_another_stream():
    """Distillation: the teacher runs ahead on its own stream with the next batch."""
    teacher = torchvision.models.resnet101(num_classes=100).to(device).half().eval()
    student = torchvision.models.mobilenet_v2(num_classes=100).to(device).train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    ahead = cuda.Stream()
    size = pick(224, 64)

    def think():
        x = torch.randn(pick(64, 2), 3, size, size, device=device)
        ahead.wait_stream(cuda.current_stream())
        with cuda.stream(ahead), torch.no_grad():
            soft = teacher(x.half()).float().softmax(1)
            x.record_stream(ahead)
        return x, soft

    after = think()
    for _ in range(6):
        cuda.current_stream().wait_stream(ahead)
        x, soft = after
        soft.record_stream(cuda.current_stream())
        after = think()
        loss = F.kl_div(student(x).log_softmax(1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


if __name__ == "__main__":
    main()
