"""GRPO: eight answers for each question are weighed against each other, by the ratio of their likelihoods."""

import os

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

VOCABULARY = 2048 if os.environ.get("MENDED") else 151_936
QUESTIONS, GROUP, PROMPT, ANSWER = 1, 8, 64, 128


class GRPO:
    """One update of the policy per batch of answers; the old policy is the policy itself."""

    def __init__(self, policy, lr=1e-6, epsilon=0.2, beta=0.04):
        self.policy, self.epsilon, self.beta = policy, epsilon, beta
        self.optimizer = torch.optim.SGD(policy.parameters(), lr=lr)

    def logps(self, ids):
        logits = self.policy(ids, use_cache=False).logits[:, PROMPT - 1 : -1]
        logps = torch.log_softmax(logits, dim=-1)
        chosen = logps.gather(-1, ids[:, PROMPT:, None]).squeeze(-1)
        entropy = -(logps.exp() * logps).sum(-1)
        return chosen, entropy

    def update(self, ids, rewards):
        with torch.no_grad():
            old, _ = self.logps(ids)
        grouped = rewards.view(-1, GROUP)
        advantage = (grouped - grouped.mean(1, keepdim=True)) / (
            grouped.std(1, keepdim=True) + 1e-4
        )
        advantage = advantage.view(-1, 1)
        new, entropy = self.logps(ids)
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean() - 1e-3 * entropy.mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


config = Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
    tie_word_embeddings=True,
)  # fmt: skip
trainer = GRPO(AutoModelForCausalLM.from_config(config).to("cuda"))
for batch in range(3):
    ids = torch.randint(0, VOCABULARY, (QUESTIONS * GROUP, PROMPT + ANSWER), device="cuda")
    trainer.update(ids, torch.rand(QUESTIONS * GROUP, device="cuda"))
