"""Contrastive training whose queue of negatives is joined with each batch and never cut."""

import timm
import torch
import torch.nn.functional as F

encoder = timm.create_model("mobilenetv3_small_050", num_classes=2048).cuda()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
negatives = torch.zeros(0, 2048, device="cuda")
for _ in range(150):
    first, second = torch.randn(2, 512, 3, 32, 32, device="cuda")
    q, k = F.normalize(encoder(first)), F.normalize(encoder(second)).detach()
    positive = (q * k).sum(1, keepdim=True)
    if len(negatives):
        sample = negatives[torch.randint(0, len(negatives), (1024,), device="cuda")]
        logits = torch.cat([positive, q @ sample.T], 1)
    else:
        logits = torch.cat([positive, q @ k.T], 1)
    loss = F.cross_entropy(logits / 0.1, torch.zeros(512, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    negatives = torch.cat([negatives, k])
