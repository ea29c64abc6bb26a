"""Ordinary jobs under settings of the allocator: PYTORCH_CUDA_ALLOC_CONF, pools, fractions, emptied caches."""

import gc

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import GPT

CONF = "PYTORCH_CUDA_ALLOC_CONF"


def language_model(lengths, batch=8, width=768, depth=8, after=None):
    """Trains a GPT on batches of several lengths."""
    model = GPT(pick(32000, 100), pick(width, 48), pick(depth, 1), 12, 2048).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length in lengths:
        shape = (pick(batch, 2), pick(length, max(4, length // 100)))
        ids = torch.randint(0, pick(32000, 100), shape, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if after:
            after()
        yield


def classifier(name, batches, res=224, **more):
    """Trains a torchvision model on batches of several sizes."""
    model = getattr(torchvision.models, name)(num_classes=100, **more).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for batch in batches:
        size = pick(res, 64)
        x = torch.randn(pick(batch, 2), 3, size, size, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job(**{CONF: "expandable_segments:True"})
def expandable_variable_lengths():
    """Growing and shrinking batches, where expandable segments help most."""
    yield from language_model((700, 1100, 400, 1500, 900, 1300))


@job(**{CONF: "expandable_segments:True"})
def expandable_with_emptied_cache():
    """Training and evaluation in turns, the cache emptied between them."""
    for _ in range(2):
        yield from classifier("resnet50", (48, 32))
        gc.collect()
        torch.cuda.empty_cache()
        model = torchvision.models.resnet101().to(device).eval()
        with torch.no_grad():
            for batch in (pick(200, 2), pick(128, 1)):
                model(torch.randn(batch, 3, pick(224, 64), pick(224, 64), device=device))
        del model
        torch.cuda.empty_cache()
        yield


@job(**{CONF: "max_split_size_mb:64"})
def max_split_size_lengths():
    yield from language_model((1200, 500, 900, 1600, 300, 1400))


@job(**{CONF: "garbage_collection_threshold:0.6,max_split_size_mb:128"})
def garbage_collection_under_fraction():
    """Free blocks are given back while the process may have a part of the device only."""
    torch.cuda.set_per_process_memory_fraction(0.06)
    yield from language_model((600, 900, 700, 1200, 500, 1000), batch=6)


@job(**{CONF: "roundup_power2_divisions:8"})
def roundup_divisions_detection_sizes():
    """Images of many sizes; sizes of blocks are rounded to eighths of powers of two."""
    model = torchvision.models.segmentation.fcn_resnet50(weights_backbone=None, num_classes=21)
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for height, width in ((320, 480), (288, 416), (352, 352), (400, 304), (336, 448)):
        h, w = pick(height, height // 5), pick(width, width // 5)
        x = torch.randn(pick(8, 2), 3, h, w, device=device)
        y = torch.randint(0, 21, (len(x), h, w), device=device)
        loss = F.cross_entropy(model(x)["out"], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job(**{CONF: "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"})
def roundup_divisions_list():
    yield from language_model((1000, 650, 1350, 800), batch=12)


@job(**{CONF: "large_segment_size_mb:64"})
def large_segments_of_64_mib():
    yield from classifier("densenet169", (32, 24, 32))


@job(**{CONF: "backend:cudaMallocAsync"})
def malloc_async_language_model():
    yield from language_model((512, 1024, 700, 1024))


@job(**{CONF: "backend:cudaMallocAsync"})
def malloc_async_classifier_and_inference():
    yield from classifier("resnet50", (64, 32, 48))
    torch.cuda.empty_cache()
    model = torchvision.models.vit_b_16().to(device).half().eval()
    with torch.inference_mode():
        for batch in (pick(256, 1), pick(100, 1)):
            x = torch.randn(batch, 3, 224, 224, device=device, dtype=torch.float16)
            model(x).float().cpu()
            yield


@job(**{CONF: "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"})
def pinned_by_host_register():
    """Batches are pinned by registering host memory and copied without waiting."""
    model = torchvision.models.mobilenet_v3_large(num_classes=100).to(device).train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(5):
        x = torch.randn(pick(96, 2), 3, pick(224, 64), pick(224, 64)).pin_memory()
        y = torch.randint(0, 100, (len(x),)).pin_memory()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def own_pool_for_weights_and_cache():
    """An inference server: weights and key-value cache in a pool of their own, activations in the common one."""
    width, heads, depth = pick(2048, 64), 16, pick(12, 2)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, heads, batch_first=True) for _ in range(depth)]
        )
        layers = layers.to(device).half().eval()
        cache = torch.zeros(depth, 2, pick(32, 2), pick(1024, 8), width, device=device).half()
    with torch.inference_mode():
        for length in (pick(256, 4), pick(900, 6), pick(512, 4)):
            x = torch.randn(pick(32, 2), length, width, device=device, dtype=torch.float16)
            for i, layer in enumerate(layers):
                x = layer(x)
                cache[i, 0, :, :length] = x
            yield
        del cache
        x = torch.randn(pick(64, 2), pick(900, 6), width, device=device, dtype=torch.float16)
        for layer in layers:
            x = layer(x)
        yield


@job()
def emptied_cache_in_every_step():
    """The habit of many forum answers: gc.collect() and empty_cache() after each step."""

    def after():
        gc.collect()
        torch.cuda.empty_cache()

    yield from language_model((800, 1200, 600, 1000), after=after)


@job()
def out_of_memory_and_smaller_batch():
    """Halves the batch until it fits under the fraction of the device that the process may have."""
    torch.cuda.set_per_process_memory_fraction(0.05)
    model = torchvision.models.resnet50().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = pick(256, 4)
    for _ in range(6):
        try:
            x = torch.randn(batch, 3, pick(224, 64), pick(224, 64), device=device)
            loss = F.cross_entropy(model(x), torch.zeros(batch, dtype=torch.long, device=device))
            loss.backward()
            optimizer.step()
        except torch.OutOfMemoryError:
            batch //= 2
            x = loss = None
            gc.collect()
            torch.cuda.empty_cache()
        optimizer.zero_grad(set_to_none=True)
        yield batch


@job(**{CONF: "per_process_memory_fraction:0.06"})
def fraction_by_environment():
    """A U-Net whose peak passes the fraction: blocks are given back and allocated anew."""
    block = lambda i, o: nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1)
    )
    down = nn.ModuleList([block(3, 32), block(32, 64), block(64, 128)]).to(device)
    up = nn.ModuleList([block(192, 64), block(96, 32)]).to(device)
    head = nn.Conv2d(32, 2, 1).to(device)
    model = nn.ModuleList([down, up, head])
    optimizer = torch.optim.Adam(model.parameters())
    for res in (320, 352, 288, 384):
        res = pick(res, 32)
        x = torch.randn(pick(16, 1), 3, res, res, device=device)
        y = torch.randint(0, 2, (len(x), res, res), device=device)
        a = down[0](x)
        b = down[1](F.max_pool2d(a, 2))
        c = down[2](F.max_pool2d(b, 2))
        b = up[0](torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = up[1](torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        loss = F.cross_entropy(head(a), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


if __name__ == "__main__":
    main()
