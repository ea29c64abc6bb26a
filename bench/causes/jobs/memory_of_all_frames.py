"""Every pixel of a video looks at every pixel of the frames before (space-time memory); written as functions with einsum."""

import os

import torch
from torch import nn

FUSED = bool(os.environ.get("MENDED"))


def read(query, keys, values):
    """What the memory has at each pixel: (batch, channels, pixels)."""
    if FUSED:
        q, k, v = (t.transpose(1, 2).unsqueeze(1).contiguous() for t in (query, keys, values))
        return nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
    affinity = torch.einsum("bcp,bcm->bpm", query, keys) / query.shape[1] ** 0.5
    return torch.einsum("bpm,bcm->bcp", affinity.softmax(-1), values)


class Segmenter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1)
        )
        self.key, self.value = nn.Conv2d(width, width, 1), nn.Conv2d(width + 1, width, 1)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, video, mask):
        b, t = video.shape[:2]
        features = self.stem(video.flatten(0, 1))
        features = features.view(b, t, *features.shape[1:])
        keys, values, masks = [], [], []
        for n in range(t):
            frame = features[:, n]
            key = self.key(frame)
            if keys:
                found = read(key.flatten(2), torch.cat(keys, 2), torch.cat(values, 2))
                mask = self.out(torch.cat([frame, found.view_as(frame)], 1)).sigmoid()
                masks.append(mask)
            keys.append(key.flatten(2))
            values.append(self.value(torch.cat([frame, mask], 1)).flatten(2))
        return torch.stack(masks, 1)


model = Segmenter().cuda()
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
for _ in range(2):
    video = torch.rand(2, 5, 3, 256, 384, device="cuda")
    masks = model(video, torch.rand(2, 1, 32, 48, device="cuda"))
    loss = nn.functional.binary_cross_entropy(masks, torch.zeros_like(masks))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
