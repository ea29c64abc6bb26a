"""Replaced words in statutes: ELECTRA's generator and discriminator from transformers trained together, shared embeddings, fp32, clipping."""

from itertools import chain

import torch
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    get_polynomial_decay_schedule_with_warmup,
)

VOCAB, MASK = 30522, 103


class Electra(torch.nn.Module):
    def __init__(self):
        super().__init__()
        shape = dict(vocab_size=VOCAB, embedding_size=768, num_hidden_layers=6)
        self.generator = ElectraForMaskedLM(
            ElectraConfig(hidden_size=256, num_attention_heads=4, intermediate_size=1024, **shape)
        )
        self.discriminator = ElectraForPreTraining(
            ElectraConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, **shape)
        )
        self.discriminator.electra.embeddings.word_embeddings = (
            self.generator.electra.embeddings.word_embeddings
        )

    def forward(self, ids, weight=50.0):
        masked = torch.rand(ids.shape, device=ids.device) < 0.15
        corrupted = ids.masked_fill(masked, MASK)
        out = self.generator(input_ids=corrupted, labels=ids.masked_fill(~masked, -100))
        with torch.no_grad():
            gumbel = -torch.log(-torch.log(torch.rand_like(out.logits).clamp(1e-6, 1 - 1e-6)))
            sampled = (out.logits + gumbel).argmax(-1)
        replaced = torch.where(masked, sampled, ids)
        truth = (replaced != ids).long()
        judged = self.discriminator(input_ids=replaced, labels=truth)
        return out.loss, judged.loss, out.loss + weight * judged.loss


def statutes(batch, length):
    while True:
        yield torch.randint(999, VOCAB, (batch, length))


if __name__ == "__main__":
    torch.manual_seed(1)
    net = Electra().cuda()
    unique = list(
        {
            id(p): p for p in chain(net.generator.parameters(), net.discriminator.parameters())
        }.values()
    )
    opt = torch.optim.AdamW(unique, lr=5e-4, eps=1e-6, weight_decay=0.01)
    decay = get_polynomial_decay_schedule_with_warmup(opt, 2, 1000)
    data = statutes(16, 256)
    for step in range(5):
        mlm, rtd, loss = net(next(data).cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unique, 1.0)
        opt.step()
        decay.step()
        opt.zero_grad()
        print(f"{step} mlm {mlm.item():.3f} rtd {rtd.item():.3f}")
