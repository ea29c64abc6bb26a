"""Task-agnostic distillation: BERT-large (frozen, half precision) into six narrow layers.

Three losses, as TinyBERT has them: soft targets, hidden states through a projection, attention maps.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import trange
from transformers import BertConfig, BertForMaskedLM


@dataclass
class Config:
    batch_size: int = 16
    seq_len: int = 256
    vocab: int = 30522
    steps: int = 4
    lr: float = 5e-4
    temperature: float = 2.0
    mlm_probability: float = 0.15
    layer_map: dict[int, int] = field(
        default_factory=lambda: {1: 4, 2: 8, 3: 12, 4: 16, 5: 20, 6: 24}
    )
    weights: dict[str, float] = field(
        default_factory=lambda: {"mlm": 1.0, "kd": 1.0, "hidden": 0.1, "attention": 0.1}
    )


def bert(hidden, layers, heads, cfg, **kw):
    config = BertConfig(
        vocab_size=cfg.vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attn_implementation="eager",  # the attention maps are wanted
        output_hidden_states=True,
        output_attentions=True,
        **kw,
    )
    return BertForMaskedLM(config)


class Distiller:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.set_default_device("cuda")
        self.teacher = bert(1024, 24, 16, cfg).half().eval().requires_grad_(False)
        self.student = bert(512, 6, 16, cfg).train()
        self.projections = nn.ModuleList(nn.Linear(512, 1024) for _ in range(7))
        params = [*self.student.parameters(), *self.projections.parameters()]
        self.optimizer = torch.optim.NAdam(
            params, lr=cfg.lr, weight_decay=0.01, decoupled_weight_decay=True
        )
        self.scheduler = LambdaLR(self.optimizer, lambda step: max(0.0, 1 - step / 100))
        self.params = params

    def masked(self, ids):
        picked = torch.rand(ids.shape) < self.cfg.mlm_probability
        labels = ids.masked_fill(~picked, -100)
        return ids.masked_fill(picked, 103), labels

    def losses(self, ids, labels, attention_mask):
        T = self.cfg.temperature
        with torch.no_grad():
            t = self.teacher(input_ids=ids, attention_mask=attention_mask)
        s = self.student(input_ids=ids, attention_mask=attention_mask)
        vocab = s.logits.size(-1)
        out = {"mlm": F.cross_entropy(s.logits.view(-1, vocab), labels.view(-1))}
        out["kd"] = (
            F.kl_div(
                F.log_softmax(s.logits / T, dim=-1),
                F.softmax(t.logits.float() / T, dim=-1),
                reduction="sum",
            )
            * T**2
            / ids.numel()
        )
        hidden = F.mse_loss(self.projections[0](s.hidden_states[0]), t.hidden_states[0].float())
        attention = 0.0
        for mine, theirs in self.cfg.layer_map.items():
            hidden = hidden + F.mse_loss(
                self.projections[mine](s.hidden_states[mine]), t.hidden_states[theirs].float()
            )
            attention = attention + F.mse_loss(
                s.attentions[mine - 1], t.attentions[theirs - 1].float()
            )
        out["hidden"], out["attention"] = hidden, attention
        return out

    def train(self):
        cfg = self.cfg
        for step in trange(cfg.steps):
            ids = torch.randint(1000, cfg.vocab, (cfg.batch_size, cfg.seq_len))
            mask = torch.ones_like(ids)
            ids, labels = self.masked(ids)
            losses = self.losses(ids, labels, mask)
            total = sum(cfg.weights[k] * v for k, v in losses.items())
            self.optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(self.params, 1.0)
            self.optimizer.step()
            self.scheduler.step()
            print(step, {k: round(v.item(), 4) for k, v in losses.items()})


if __name__ == "__main__":
    Distiller(Config()).train()
