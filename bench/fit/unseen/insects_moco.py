"""MoCo v2 on insects: a ResNet-50 and its momentum copy, a queue of negatives, shuffled keys, SGD with cosine."""

import math

import torch
import torch.nn as nn
import torchvision.models as models


class MoCo(nn.Module):
    def __init__(self, dim=128, K=65536, m=0.999, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q, self.encoder_k = (self.make(dim) for _ in range(2))
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", nn.functional.normalize(torch.randn(dim, K), dim=0))
        self.ptr = 0

    @staticmethod
    def make(dim):
        net = models.resnet50(num_classes=dim)
        width = net.fc.in_features
        net.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), net.fc)
        return net

    @torch.no_grad()
    def keys(self, x):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)
        shuffle = torch.randperm(len(x), device=x.device)
        k = nn.functional.normalize(self.encoder_k(x[shuffle]), dim=1)
        return k[torch.argsort(shuffle)]

    @torch.no_grad()
    def enqueue(self, k):
        self.queue[:, self.ptr : self.ptr + len(k)] = k.T
        self.ptr = (self.ptr + len(k)) % self.K

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        k = self.keys(im_k)
        pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([pos, neg], 1) / self.T
        self.enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device)


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    return x * (0.8 + 0.4 * torch.rand(len(x), 3, 1, 1)) + 0.05 * torch.randn_like(x)


def main(epochs=2, iters=3, batch=64, lr=0.03):
    torch.manual_seed(0)
    model = MoCo().cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        for g in optimizer.param_groups:
            g["lr"] = lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        for it in range(iters):
            photos = torch.rand(batch, 3, 176, 176)
            logits, labels = model(augment(photos).cuda(), augment(photos).cuda())
            loss = criterion(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
