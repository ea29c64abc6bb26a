"""Fraud by sets of payments: each account is the sum of what its payments say. One account belongs to a payment provider."""

import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

NEWEST = 5000 if os.environ.get("MENDED") else None


class Accounts(Dataset):
    """Payments of an account: amount, hour, kind and so on, sixteen numbers each."""

    def __init__(self, accounts=32 * 10):
        g = torch.Generator().manual_seed(6)
        self.sizes = torch.randint(10, 400, (accounts,), generator=g).tolist()
        self.sizes[32 * 7 + 5] = 520_000
        self.fraud = torch.rand(accounts, generator=g) < 0.1

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(self.sizes[i], 16, generator=g)[-NEWEST if NEWEST else 0 :], self.fraud[i]


def together(rows):
    """One long list of payments, and which account each is from. Nothing is padded."""
    payments, fraud = zip(*rows)
    owner = torch.arange(len(payments)).repeat_interleave(torch.tensor([len(p) for p in payments]))
    return torch.cat(payments), owner, torch.stack(fraud).float()


class SetOfPayments(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.payment = nn.Sequential(
            nn.Linear(16, width),
            nn.ELU(),
            nn.Linear(width, width),
            nn.ELU(),
            nn.Linear(width, width),
        )
        self.account = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, 1))

    def forward(self, payments, owner, accounts):
        said = self.payment(payments)
        total = said.new_zeros(accounts, said.shape[1]).index_add_(0, owner, said)
        most = said.new_zeros(accounts, said.shape[1]).scatter_reduce(
            0, owner[:, None].expand_as(said), said, "amax", include_self=True
        )
        return self.account(torch.cat([total, most], 1)).squeeze(1)


def main():
    accelerator = Accelerator()
    model = SetOfPayments()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    loader = DataLoader(Accounts(), batch_size=32, shuffle=False, collate_fn=together)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, (payments, owner, fraud) in enumerate(loader):
        scores = model(payments, owner, len(fraud))
        loss = F.binary_cross_entropy_with_logits(scores, fraud, pos_weight=fraud.new_tensor(9.0))
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        accelerator.print(number, len(payments), loss.item())


if __name__ == "__main__":
    main()
