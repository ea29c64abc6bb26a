"""Quizzes about pictures by LXMERT over 36 regions: own loop, soft targets for 3,129 answers, three learning rates, fp32 with a linear schedule."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from transformers import LxmertConfig, LxmertModel

ANSWERS, REGIONS, WORDS, BATCH, STEPS = 3129, 36, 20, 128, 5
device = torch.device("cuda:0")


class Quizzer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = LxmertConfig(
            hidden_size=512,
            num_attention_heads=8,
            intermediate_size=2048,
            l_layers=6,
            x_layers=4,
            r_layers=4,
            visual_feat_dim=2048,
        )
        self.lxmert = LxmertModel(config)
        self.answer = torch.nn.Sequential(
            torch.nn.Linear(512, 1024),
            torch.nn.GELU(),
            torch.nn.LayerNorm(1024),
            torch.nn.Linear(1024, ANSWERS),
        )

    def forward(self, words, mask, regions, boxes):
        out = self.lxmert(
            input_ids=words, attention_mask=mask, visual_feats=regions, visual_pos=boxes
        )
        return self.answer(out.pooled_output)


def quiz():
    words = torch.randint(1000, 30_000, (BATCH, WORDS))
    mask = (torch.arange(WORDS) < torch.randint(6, WORDS + 1, (BATCH, 1))).long()
    regions = torch.randn(BATCH, REGIONS, 2048).relu()
    boxes = torch.rand(BATCH, REGIONS, 4)
    targets = torch.zeros(BATCH, ANSWERS)
    targets.scatter_(1, torch.randint(0, ANSWERS, (BATCH, 4)), 0.6)
    return [t.to(device) for t in (words * mask, mask, regions, boxes, targets)]


net = Quizzer().to(device)
embeddings = list(net.lxmert.embeddings.parameters())
groups = [
    {"params": embeddings, "lr": 2e-5},
    {"params": net.lxmert.encoder.parameters(), "lr": 5e-5},
    {"params": [*net.lxmert.pooler.parameters(), *net.answer.parameters()], "lr": 2e-4},
]
opt = torch.optim.AdamW(groups, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.0, 1 - s / STEPS))
net.train()
for it in range(STEPS):
    *inputs, targets = quiz()
    loss = bce(net(*inputs), targets) * ANSWERS
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    schedule.step()
    print(f"it {it} loss {loss.item():.3f}")
