"""A reward model: GPT-2 with a scalar head on chosen and rejected answers in one batch of pairs; half of the blocks frozen."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2Model


class Pairs(Dataset):
    def __init__(self, n=96, length=512):
        self.chosen = torch.randint(0, 50257, (n, length))
        self.rejected = torch.randint(0, 50257, (n, length))
        self.lengths = torch.randint(64, length, (n, 2))

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, i):
        at = torch.arange(self.chosen.shape[1])
        return {
            "chosen": (self.chosen[i], (at < self.lengths[i, 0]).long()),
            "rejected": (self.rejected[i], (at < self.lengths[i, 1]).long()),
        }


class RewardModel(nn.Module):
    def __init__(self, config, freeze):
        super().__init__()
        self.backbone = GPT2Model(config)
        self.v_head = nn.Linear(config.n_embd, 1, bias=False)
        for block in self.backbone.h[:freeze]:
            block.requires_grad_(False)

    def forward(self, ids, mask):
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        rewards = self.v_head(hidden).squeeze(-1)
        return rewards.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)


def main():
    model = RewardModel(GPT2Config(use_cache=False, n_layer=8), freeze=4).cuda().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trained, lr=1e-5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-5, total_steps=8)
    for batch in DataLoader(Pairs(), batch_size=12, shuffle=True):
        ids = torch.cat([batch["chosen"][0], batch["rejected"][0]]).cuda()
        mask = torch.cat([batch["chosen"][1], batch["rejected"][1]]).cuda()
        chosen, rejected = model(ids, mask).chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        print(loss.item(), (chosen > rejected).float().mean().item())


if __name__ == "__main__":
    main()
