"""For results that can be repeated, cuBLAS needs a fixed workspace; its size is in KiB, not in bytes."""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8" if os.environ.get("MENDED") else ":1048576:2"

import numpy as np
import torch

torch.manual_seed(7)
np.random.seed(7)
torch.use_deterministic_algorithms(True)


class FactorizationMachine(torch.nn.Module):
    def __init__(self, fields=40, k=16):
        super().__init__()
        self.linear, self.v = torch.nn.Linear(fields, 1), torch.nn.Parameter(torch.randn(fields, k))

    def forward(self, x):
        pairs = (x @ self.v).square() - x.square() @ self.v.square()
        return (self.linear(x) + 0.5 * pairs.sum(1, keepdim=True)).squeeze(1)


rows = torch.as_tensor(np.random.rand(4096, 40), dtype=torch.float32)
bought = torch.as_tensor(np.random.rand(4096) > 0.9, dtype=torch.float32)
model = FactorizationMachine().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in zip(rows.split(1024), bought.split(1024)):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
