"""Which passage answers the query: a MiniLM-sized cross-encoder scores lists of sixteen passages, ListNet against a teacher's scores, own loop in bf16."""

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification, get_cosine_schedule_with_warmup


class ListwiseReranker:
    def __init__(self, lists=8, depth=16, tokens=192, lr=3e-5, device="cuda"):
        self.lists, self.depth, self.tokens, self.device = lists, depth, tokens, device
        config = BertConfig(
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=1536,
            num_labels=1,
        )
        self.encoder = BertForSequenceClassification(config).to(device)
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=lr, weight_decay=0.01)
        self.scheduler = get_cosine_schedule_with_warmup(self.optimizer, 2, 500)
        self.rng = torch.Generator().manual_seed(31)

    def next_batch(self):
        n = self.lists * self.depth
        ids = torch.randint(1000, 30522, (n, self.tokens), generator=self.rng)
        lengths = torch.randint(self.tokens // 2, self.tokens + 1, (n, 1), generator=self.rng)
        mask = (torch.arange(self.tokens) < lengths).long()
        kinds = (torch.arange(self.tokens) >= 16).long().expand(n, -1)
        teacher = torch.randn(self.lists, self.depth, generator=self.rng) * 3
        return [t.to(self.device) for t in (ids * mask, mask, kinds * mask, teacher)]

    def scores(self, ids, mask, kinds):
        out = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=kinds)
        return out.logits.view(self.lists, self.depth)

    def fit(self, steps=5, log_every=1):
        self.encoder.train()
        for step in range(1, steps + 1):
            ids, mask, kinds, teacher = self.next_batch()
            with torch.autocast(self.device, dtype=torch.bfloat16):
                scores = self.scores(ids, mask, kinds)
            student = F.log_softmax(scores.float(), dim=-1)
            loss = F.kl_div(student, F.softmax(teacher, dim=-1), reduction="batchmean")
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), 2.0)
            self.optimizer.step()
            self.scheduler.step()
            if step % log_every == 0:
                print(f"step={step} listnet={loss.item():.4f}")

    @torch.no_grad()
    def reciprocal_rank(self):
        self.encoder.eval()
        ids, mask, kinds, teacher = self.next_batch()
        with torch.autocast(self.device, dtype=torch.bfloat16):
            order = self.scores(ids, mask, kinds).float().argsort(-1, descending=True)
        best = teacher.argmax(-1, keepdim=True)
        rank = (order == best).float().argmax(-1) + 1.0
        return (1 / rank).mean().item()


if __name__ == "__main__":
    torch.manual_seed(31)
    reranker = ListwiseReranker()
    reranker.fit()
    print("MRR", reranker.reciprocal_rank())
