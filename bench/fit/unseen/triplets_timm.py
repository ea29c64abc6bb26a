"""Triplets of pictures through one timm encoder; the hardest negatives of the batch."""

import timm
import torch
import torch.nn.functional as F


def hardest(emb, labels):
    d = torch.cdist(emb, emb)
    same = labels[:, None] == labels[None]
    pos = d.masked_fill(~same, float("-inf")).argmax(1)
    neg = d.masked_fill(same, float("inf")).argmin(1)
    return emb[pos], emb[neg]


net = timm.create_model("efficientnet_b1", pretrained=False, num_classes=0, drop_path_rate=0.1)
head = torch.nn.Linear(net.num_features, 256)
net, head = net.cuda().train(), head.cuda()
opt = torch.optim.RMSprop(
    [{"params": net.parameters(), "lr": 1e-4}, {"params": head.parameters(), "lr": 1e-3}],
    momentum=0.9,
)
margin = torch.nn.TripletMarginLoss(0.3)
ids = torch.arange(10).repeat_interleave(4).cuda()
n = 0
while n < 5:
    x = torch.rand(40, 3, 192, 192).cuda()
    e = F.normalize(head(net(x)))
    p, q = hardest(e, ids)
    loss = margin(e, p, q)
    loss.backward()
    opt.step()
    opt.zero_grad()
    n += 1
    print("step %d: %.3f" % (n, loss.item()))
