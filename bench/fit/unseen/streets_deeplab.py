"""Street scenes: torchvision DeepLabV3-ResNet50 with its auxiliary head, SGD, polynomial decay, crops of 512 px in fp32."""

import datetime
import time

import torch
import torch.utils.data
import torchvision
from torch import nn


class Crops(torch.utils.data.Dataset):
    def __init__(self, length, crop, num_classes):
        self.length, self.crop, self.num_classes = length, crop, num_classes

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        image = torch.randn(3, self.crop, self.crop)
        mask = torch.randint(0, self.num_classes, (self.crop, self.crop))
        mask[:8] = 255
        return image, mask


def criterion(inputs, target):
    losses = {
        k: nn.functional.cross_entropy(x, target, ignore_index=255) for k, x in inputs.items()
    }
    if len(losses) == 1:
        return losses["out"]
    return losses["out"] + 0.5 * losses["aux"]


def main(lr=0.01, batch_size=6, num_classes=19, iters=8):
    device = torch.device("cuda")
    loader = torch.utils.data.DataLoader(
        Crops(batch_size * iters, 512, num_classes), batch_size=batch_size, drop_last=True
    )
    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=True
    ).to(device)

    groups = [
        {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
        {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
        {
            "params": [p for p in model.aux_classifier.parameters() if p.requires_grad],
            "lr": lr * 10,
        },
    ]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=iters * 30, power=0.9)

    start = time.time()
    model.train()
    for i, (image, target) in enumerate(loader):
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if i % 2 == 0:
            print(i, loss.item())
    print("took", datetime.timedelta(seconds=int(time.time() - start)))


if __name__ == "__main__":
    main()
