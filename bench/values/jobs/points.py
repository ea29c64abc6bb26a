"""Point clouds: occupied voxels and neighbours within a radius are counted on the device."""

import torch
from torch import nn

torch.manual_seed(9)
encoder, head = (
    nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 128)).cuda(),
    nn.Linear(128, 4).cuda(),
)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
generator = torch.Generator().manual_seed(10)
for count in (3000, 5000, 4000):
    points = (torch.randn(count, 3, generator=generator).abs() ** 1.5).cuda()
    voxels, of_point = torch.unique((points * 4).long(), dim=0, return_inverse=True)
    first, second = torch.nonzero(torch.cdist(points, points) < 0.15, as_tuple=True)
    edges = encoder(torch.cat([points[first], points[second] - points[first]], 1))
    pooled = torch.zeros(len(voxels), 128, device="cuda").index_add(0, of_point[first], edges)
    loss = head(pooled).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("voxels", len(voxels), "pairs", len(first), "loss", round(loss.item(), 4))
