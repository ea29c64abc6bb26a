"""Claims and the pages that back them: DPR's two BERTs, in-batch and hard negatives, one optimizer for each tower that step in turn, bf16 autocast."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder


@dataclass
class ClaimBatch:
    claims: Tensor  # B x 40
    pages: Tensor  # 2B x 224: the right page of each claim, then a hard negative of each
    claim_mask: Tensor
    page_mask: Tensor

    @classmethod
    def draw(cls, b: int, device: str) -> "ClaimBatch":
        def texts(n, length):
            ids = torch.randint(999, 30522, (n, length), device=device)
            mask = torch.ones_like(ids)
            mask[:, int(length * 0.8) :] = (torch.rand(n, 1, device=device) > 0.5).long()
            return ids, mask

        claims, claim_mask = texts(b, 40)
        pages, page_mask = texts(2 * b, 224)
        return cls(claims, pages, claim_mask, page_mask)


class Retriever:
    def __init__(self, device: str = "cuda"):
        config = DPRConfig(num_hidden_layers=9, projection_dim=256)
        with torch.device(device):
            self.question = DPRQuestionEncoder(config).train()
            self.context = DPRContextEncoder(config).train()
        self.device = device
        self.opt = {
            "question": torch.optim.AdamW(self.question.parameters(), lr=2e-5),
            "context": torch.optim.AdamW(self.context.parameters(), lr=1e-5),
        }

    def score(self, batch: ClaimBatch) -> Tensor:
        q = self.question(batch.claims, attention_mask=batch.claim_mask).pooler_output
        p = self.context(batch.pages, attention_mask=batch.page_mask).pooler_output
        return q.float() @ p.float().T

    def step(self, batch: ClaimBatch, which: str) -> float:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            scores = self.score(batch)
        loss = F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        for opt in self.opt.values():
            opt.zero_grad()
        loss.backward()
        self.opt[which].step()
        return loss.item()


def main():
    torch.manual_seed(5)
    retriever = Retriever()
    for i in range(6):
        turn = "question" if i % 2 == 0 else "context"
        print(i, turn, retriever.step(ClaimBatch.draw(12, "cuda"), turn))


if __name__ == "__main__":
    main()
