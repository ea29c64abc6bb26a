"""Mask R-CNN in training: how many proposals each picture keeps depends on what the network computes."""

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

torch.manual_seed(0)
model = maskrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=5, rpn_post_nms_top_n_train=300
)
model = model.cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
generator = torch.Generator().manual_seed(1)
for _ in range(2):
    pictures = [torch.rand(3, 256, 320, generator=generator).cuda() for _ in range(2)]
    targets = []
    for _ in pictures:
        corners = torch.rand(3, 2, generator=generator) * 120
        boxes = torch.cat([corners, corners + 40 + torch.rand(3, 2, generator=generator) * 80], 1)
        labels, masks = torch.tensor([1, 2, 3]), torch.ones(3, 256, 320, dtype=torch.uint8)
        targets.append({"boxes": boxes.cuda(), "labels": labels.cuda(), "masks": masks.cuda()})
    optimizer.zero_grad()
    losses = model(pictures, targets)
    sum(losses.values()).backward()
    optimizer.step()
    print("losses", {name: round(loss.item(), 4) for name, loss in losses.items()})
