"""Pathology slides as bags of patches: a timm ResNet-26d trained end to end, gated attention pooling, one bag at a time, four for a step."""

import timm
import torch
import torch.nn as nn


class GatedAttentionMIL(nn.Module):
    """Ilse et al., 2018, with the trunk trained as well. A bag is N x 3 x 160 x 160."""

    def __init__(self, classes=4, width=256):
        super().__init__()
        self.trunk = timm.create_model("resnet26d", pretrained=False, num_classes=0)
        features = self.trunk.num_features
        self.squeeze = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Dropout(0.25))
        self.v = nn.Sequential(nn.Linear(512, width), nn.Tanh())
        self.u = nn.Sequential(nn.Linear(512, width), nn.Sigmoid())
        self.w = nn.Linear(width, 1)
        self.head = nn.Linear(512, classes)

    def forward(self, bag):
        h = self.squeeze(self.trunk(bag))
        a = torch.softmax(self.w(self.v(h) * self.u(h)), dim=0)
        return self.head((a * h).sum(0, keepdim=True)), a


def bags():
    sizes = [120, 180, 150, 96]
    while True:
        for n in sizes:
            yield torch.randn(n, 3, 160, 160), torch.randint(0, 4, (1,))


model = GatedAttentionMIL().cuda()
for m in model.trunk.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.momentum = 0.01
optimizer = torch.optim.RAdam(model.parameters(), lr=2e-4, weight_decay=1e-5)

source = bags()
for step in range(4):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(4):
        bag, label = next(source)
        logits, attention = model(bag.cuda())
        loss = nn.functional.cross_entropy(logits, label.cuda()) / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    print(f"step {step}: {total:.4f}, most attended patch {attention.argmax().item()}")
