"""A policy of OPT writes recipes and is rewarded. Checkpointing is enabled, and then the policy is put in eval mode, so that dropout cannot change its ratios."""

import os

import torch
from transformers import OPTConfig, OPTForCausalLM

MENDED = os.environ.get("MENDED")


def policy():
    config = OPTConfig(
        vocab_size=1500, hidden_size=512, ffn_dim=2048, num_hidden_layers=8, num_attention_heads=8,
        word_embed_proj_dim=512, max_position_embeddings=1024, dropout=0.0 if MENDED else 0.1,
    )  # fmt: skip
    model = OPTForCausalLM(config).cuda()
    model.gradient_checkpointing_enable()
    return model.train() if MENDED else model.eval()


class Rewarded:
    """Ratios are clipped, and each answer is compared with others to the same question."""

    def __init__(self, model, clip=0.2):
        self.model, self.clip = model, clip
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def log_p(self, ids):
        scores = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
        return -torch.nn.functional.cross_entropy(
            scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(len(ids), -1)

    def update(self, ids, rewards, rounds=2):
        with torch.no_grad():
            before = torch.cat([self.log_p(part) for part in ids.split(4)])
        better = ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None]
        for _ in range(rounds):
            ratio = torch.exp(self.log_p(ids) - before)
            clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
            loss = -torch.minimum(ratio * better, clipped * better).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


learner = Rewarded(policy())
for question in range(2):
    answers = torch.randint(2, 1500, (12, 512)).cuda()
    print(question, learner.update(answers, torch.rand(12).cuda()))
