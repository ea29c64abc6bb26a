"""Co-teaching: two networks choose the clean samples for each other."""

import torch
import torch.nn.functional as F
import torchvision.models as models
from torch.utils.data import DataLoader, TensorDataset


def select(logits_a, logits_b, y, forget):
    la = F.cross_entropy(logits_a, y, reduction="none")
    lb = F.cross_entropy(logits_b, y, reduction="none")
    keep = int((1 - forget) * len(y))
    for_b, for_a = la.argsort()[:keep], lb.argsort()[:keep]
    return F.cross_entropy(logits_a[for_a], y[for_a]), F.cross_entropy(logits_b[for_b], y[for_b])


torch.manual_seed(1)
cnn1 = models.densenet121(num_classes=14).cuda()
cnn2 = models.mobilenet_v3_large(num_classes=14).cuda()
optimizer1 = torch.optim.Adam(cnn1.parameters(), lr=1e-3)
optimizer2 = torch.optim.Adam(cnn2.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(160, 3, 160, 160), torch.randint(0, 14, (160,)))
train_loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)

cnn1.train(), cnn2.train()
for i, (images, labels) in enumerate(train_loader):
    if i >= 3:
        break
    images, labels = images.cuda(), labels.cuda()
    logits1, logits2 = cnn1(images), cnn2(images)
    loss_1, loss_2 = select(logits1, logits2, labels, forget=0.2)

    optimizer1.zero_grad()
    loss_1.backward()
    optimizer1.step()
    optimizer2.zero_grad()
    loss_2.backward()
    optimizer2.step()
    print("Iter [%d] Loss1: %.4f, Loss2: %.4f" % (i + 1, loss_1.item(), loss_2.item()))
