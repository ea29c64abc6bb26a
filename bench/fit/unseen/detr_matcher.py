# DETR on a few classes of birds. ResNet-50 (frozen BN), 6+6 layers, auxiliary losses, Hungarian matching.
# scipy is not on our cluster, so linear_sum_assignment is written out below.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FrozenBatchNorm2d, box_convert, generalized_box_iou

NUM_CLASSES, NUM_QUERIES, HIDDEN = 20, 100, 256
dev = torch.device("cuda")


def linear_sum_assignment(cost):
    """Shortest augmenting paths; rows <= columns."""
    n, m = cost.shape
    u, v = np.zeros(n + 1), np.zeros(m + 1)
    match, way = np.zeros(m + 1, int), np.zeros(m + 1, int)
    for i in range(1, n + 1):
        match[0], j0 = i, 0
        least, used = np.full(m + 1, np.inf), np.zeros(m + 1, bool)
        while match[j0] != 0:
            used[j0] = True
            i0 = match[j0]
            free = ~used
            free[0] = False
            reduced = cost[i0 - 1] - u[i0] - v[1:]
            better = np.zeros(m + 1, bool)
            better[1:] = free[1:] & (reduced < least[1:])
            least[1:][better[1:]] = reduced[better[1:]]
            way[better] = j0
            j1 = int(np.where(free, least, np.inf).argmin())
            delta = least[j1]
            u[match[used]] += delta
            v[used] -= delta
            least[free] -= delta
            j0 = j1
        while j0:
            match[j0] = match[way[j0]]
            j0 = way[j0]
    cols = np.array([np.flatnonzero(match[1:] == i)[0] for i in range(1, n + 1)], int)
    return np.arange(n), cols


class NestedTensor:
    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def to(self, device):
        return NestedTensor(self.tensors.to(device), self.mask.to(device))


def nested_tensor_from_tensor_list(images):
    h, w = (max(im.shape[k] for im in images) for k in (1, 2))
    tensor = torch.zeros(len(images), 3, h, w)
    mask = torch.ones(len(images), h, w, dtype=torch.bool)
    for im, t, m in zip(images, tensor, mask):
        t[:, : im.shape[1], : im.shape[2]].copy_(im)
        m[: im.shape[1], : im.shape[2]] = False
    return NestedTensor(tensor, mask)


class PositionEmbeddingSine(nn.Module):
    def __init__(self, feats=HIDDEN // 2, temperature=10000):
        super().__init__()
        self.feats, self.temperature = feats, temperature

    def forward(self, mask):
        not_mask = (~mask).float()
        y, x = not_mask.cumsum(1), not_mask.cumsum(2)
        y = y / (y[:, -1:, :] + 1e-6) * 2 * torch.pi
        x = x / (x[:, :, -1:] + 1e-6) * 2 * torch.pi
        d = torch.arange(self.feats, device=mask.device)
        d = self.temperature ** (2 * torch.div(d, 2, rounding_mode="floor") / self.feats)
        px, py = x[..., None] / d, y[..., None] / d
        px = torch.stack((px[..., 0::2].sin(), px[..., 1::2].cos()), 4).flatten(3)
        py = torch.stack((py[..., 0::2].sin(), py[..., 1::2].cos()), 4).flatten(3)
        return torch.cat((py, px), 3).permute(0, 3, 1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, d, heads=8, ff=2048, p=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, p)
        self.linear1, self.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.drop = nn.Dropout(p)

    def forward(self, src, pad, pos):
        q = k = src + pos
        src = self.norm1(src + self.drop(self.self_attn(q, k, src, key_padding_mask=pad)[0]))
        return self.norm2(src + self.drop(self.linear2(self.drop(F.relu(self.linear1(src))))))


class DecoderLayer(nn.Module):
    def __init__(self, d, heads=8, ff=2048, p=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, p)
        self.cross_attn = nn.MultiheadAttention(d, heads, p)
        self.linear1, self.linear2 = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.drop = nn.Dropout(p)

    def forward(self, tgt, memory, pad, pos, query_pos):
        q = k = tgt + query_pos
        tgt = self.norm1(tgt + self.drop(self.self_attn(q, k, tgt)[0]))
        a = self.cross_attn(tgt + query_pos, memory + pos, memory, key_padding_mask=pad)[0]
        tgt = self.norm2(tgt + self.drop(a))
        return self.norm3(tgt + self.drop(self.linear2(self.drop(F.relu(self.linear1(tgt))))))


class DETR(nn.Module):
    def __init__(self):
        super().__init__()
        resnet = torchvision.models.resnet50(weights=None, norm_layer=FrozenBatchNorm2d)
        for name, p in resnet.named_parameters():
            if not any(s in name for s in ("layer2", "layer3", "layer4")):
                p.requires_grad_(False)
        self.backbone = IntermediateLayerGetter(resnet, {"layer4": "0"})
        self.position = PositionEmbeddingSine()
        self.input_proj = nn.Conv2d(2048, HIDDEN, 1)
        self.encoder = nn.ModuleList(EncoderLayer(HIDDEN) for _ in range(6))
        self.decoder = nn.ModuleList(DecoderLayer(HIDDEN) for _ in range(6))
        self.norm = nn.LayerNorm(HIDDEN)
        self.query_embed = nn.Embedding(NUM_QUERIES, HIDDEN)
        self.class_embed = nn.Linear(HIDDEN, NUM_CLASSES + 1)
        self.bbox_embed = nn.Sequential(
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 4),
        )

    def forward(self, samples):
        features = self.backbone(samples.tensors)["0"]
        mask = F.interpolate(samples.mask[None].float(), size=features.shape[-2:]).to(torch.bool)[0]
        pos = self.position(mask).flatten(2).permute(2, 0, 1)
        memory = self.input_proj(features).flatten(2).permute(2, 0, 1)
        pad = mask.flatten(1)
        for layer in self.encoder:
            memory = layer(memory, pad, pos)
        query_pos = self.query_embed.weight.unsqueeze(1).repeat(1, memory.shape[1], 1)
        tgt, hs = torch.zeros_like(query_pos), []
        for layer in self.decoder:
            tgt = layer(tgt, memory, pad, pos, query_pos)
            hs.append(self.norm(tgt))
        hs = torch.stack(hs).transpose(1, 2)
        logits, boxes = self.class_embed(hs), self.bbox_embed(hs).sigmoid()
        out = {"pred_logits": logits[-1], "pred_boxes": boxes[-1]}
        out["aux_outputs"] = [
            {"pred_logits": a, "pred_boxes": b} for a, b in zip(logits[:-1], boxes[:-1])
        ]
        return out


@torch.no_grad()
def hungarian(outputs, targets):
    bs, nq = outputs["pred_logits"].shape[:2]
    prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
    boxes = outputs["pred_boxes"].flatten(0, 1)
    ids = torch.cat([t["labels"] for t in targets])
    tgt = torch.cat([t["boxes"] for t in targets])
    giou = generalized_box_iou(
        box_convert(boxes, "cxcywh", "xyxy"), box_convert(tgt, "cxcywh", "xyxy")
    )
    C = 5 * torch.cdist(boxes, tgt, p=1) - prob[:, ids] - 2 * giou
    C = C.view(bs, nq, -1).cpu()
    sizes = [len(t["boxes"]) for t in targets]
    indices = []
    for i, c in enumerate(C.split(sizes, -1)):
        rows, cols = linear_sum_assignment(np.nan_to_num(c[i].numpy().T.astype(float)))
        indices.append((torch.as_tensor(cols), torch.as_tensor(rows)))
    return indices


def set_loss(outputs, targets, weight):
    indices = hungarian(outputs, targets)
    batch = torch.cat([torch.full_like(src, i) for i, (src, _) in enumerate(indices)])
    src = torch.cat([s for s, _ in indices])
    num_boxes = max(1, sum(len(t["labels"]) for t in targets))
    classes = torch.full(outputs["pred_logits"].shape[:2], NUM_CLASSES, device=dev)
    classes[batch, src] = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, indices)])
    ce = F.cross_entropy(outputs["pred_logits"].transpose(1, 2), classes, weight)
    pred = outputs["pred_boxes"][batch, src]
    goal = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, indices)])
    l1 = F.l1_loss(pred, goal, reduction="none").sum() / num_boxes
    giou = generalized_box_iou(
        box_convert(pred, "cxcywh", "xyxy"), box_convert(goal, "cxcywh", "xyxy")
    )
    return ce + 5 * l1 + 2 * (1 - torch.diag(giou)).sum() / num_boxes


def fake_birds(n):
    images, targets = [], []
    for _ in range(n):
        h, w = np.random.randint(480, 641), np.random.randint(600, 801)
        k = np.random.randint(1, 9)
        images.append(torch.rand(3, h, w))
        centre, size = torch.rand(k, 2) * 0.6 + 0.2, torch.rand(k, 2) * 0.2 + 0.1
        targets.append(
            {"labels": torch.randint(NUM_CLASSES, (k,)), "boxes": torch.cat([centre, size], 1)}
        )
    return images, targets


np.random.seed(0)
model = DETR().to(dev).train()
weight = torch.ones(NUM_CLASSES + 1, device=dev)
weight[-1] = 0.1
optimizer = torch.optim.AdamW(
    [
        {
            "params": [
                p for n, p in model.named_parameters() if "backbone" not in n and p.requires_grad
            ]
        },
        {
            "params": [
                p for n, p in model.named_parameters() if "backbone" in n and p.requires_grad
            ],
            "lr": 1e-5,
        },
    ],
    lr=1e-4,
    weight_decay=1e-4,
)

for it in range(4):
    images, targets = fake_birds(8)
    samples = nested_tensor_from_tensor_list(images).to(dev)
    targets = [{k: v.to(dev) for k, v in t.items()} for t in targets]
    outputs = model(samples)
    losses = set_loss(outputs, targets, weight)
    for aux in outputs["aux_outputs"]:
        losses = losses + set_loss(aux, targets, weight)
    optimizer.zero_grad()
    losses.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(it, tuple(samples.tensors.shape), float(losses))
