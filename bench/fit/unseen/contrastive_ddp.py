"""CLIP pretraining under DistributedDataParallel, features gathered from all ranks.

torchrun --nproc-per-node 8 contrastive_ddp.py, or python contrastive_ddp.py for one process.
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.models import resnet50

CONTEXT, VOCAB, EMBED = 77, 49408, 512


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def setup():
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), local


class Pairs(Dataset):
    def __init__(self, n=4096):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.randint(0, 256, (3, 224, 224), dtype=torch.uint8, generator=g)
        length = int(torch.randint(6, CONTEXT - 2, (), generator=g))
        text = torch.zeros(CONTEXT, dtype=torch.long)
        text[0], text[length] = VOCAB - 2, VOCAB - 1
        text[1:length] = torch.randint(1, VOCAB - 2, (length - 1,), generator=g)
        return image, text


class TextTower(nn.Module):
    def __init__(self, width=512, heads=8, layers=8):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, width)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, width) * 0.01)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, EMBED) * width**-0.5)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu_(1)
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        for block in self.blocks:
            x = block(x, src_mask=self.attn_mask, is_causal=True)
        x = self.ln_final(x)
        return x[torch.arange(len(x), device=x.device), text.argmax(-1)] @ self.text_projection


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = resnet50(weights=None, num_classes=EMBED)
        self.text = TextTower()
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))
        self.register_buffer("mean", torch.tensor([122.8, 116.7, 104.1]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([68.5, 66.6, 70.3]).view(3, 1, 1))

    def forward(self, image, text):
        image = (image.float() - self.mean) / self.std
        image = image.contiguous(memory_format=torch.channels_last)
        return (
            F.normalize(self.visual(image), dim=-1),
            F.normalize(self.text(text), dim=-1),
            self.logit_scale.exp(),
        )


def clip_loss(image_features, text_features, scale, rank, world):
    all_image = torch.cat(torch.distributed.nn.all_gather(image_features))
    all_text = torch.cat(torch.distributed.nn.all_gather(text_features))
    n = len(image_features)
    labels = torch.arange(n, device=image_features.device) + n * rank
    return 0.5 * (
        F.cross_entropy(scale * image_features @ all_text.T, labels)
        + F.cross_entropy(scale * text_features @ all_image.T, labels)
    )


def main():
    rank, world, local = setup()
    torch.manual_seed(rank)
    model = CLIP().cuda(local)
    model.visual = model.visual.to(memory_format=torch.channels_last)
    model = DDP(model, device_ids=[local], static_graph=True, gradient_as_bucket_view=True)
    exclude = lambda n, p: p.ndim < 2 or "bn" in n or "ln" in n or "bias" in n or "logit_scale" in n
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if exclude(n, p)], "weight_decay": 0.0},
            {"params": [p for n, p in named if not exclude(n, p)], "weight_decay": 0.2},
        ],
        lr=5e-4,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    scaler = torch.amp.GradScaler("cuda")
    data = Pairs()
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=112, sampler=sampler, drop_last=True)
    for step, (image, text) in enumerate(loader):
        if step == 5:
            break
        image, text = image.cuda(local, non_blocking=True), text.cuda(local, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            features = model(image, text)
            loss = clip_loss(*features, rank, world)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            model.module.logit_scale.clamp_(0, 4.6052)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} scale {features[2].item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
