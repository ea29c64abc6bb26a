"""GRPO on proofs: groups of eight sampled answers, a frozen reference, clipped ratios, the KL of the estimator k3."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

GROUP, PROMPT, ANSWER = 8, 128, 256


def token_logps(model, ids):
    logits = model(input_ids=ids).logits[:, :-1].float()
    logps = torch.log_softmax(logits, dim=-1)
    return logps.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, PROMPT - 1 :]


def rollout(vocab, prompts):
    """Stands in for the sampler: answers, their mask and rewards, normalised in each group."""
    ids = torch.randint(0, vocab, (prompts, 1, PROMPT)).expand(-1, GROUP, -1)
    answers = torch.randint(0, vocab, (prompts, GROUP, ANSWER))
    ends = torch.randint(ANSWER // 3, ANSWER, (prompts, GROUP, 1))
    mask = (torch.arange(ANSWER) < ends).float()
    reward = torch.rand(prompts, GROUP)
    advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
    full = torch.cat([ids, answers], -1)
    return full.flatten(0, 1).cuda(), mask.flatten(0, 1).cuda(), advantage.flatten()[:, None].cuda()


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        use_cache=False,
    )
    policy = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

    for iteration in range(3):
        ids, mask, advantage = rollout(config.vocab_size, prompts=1)
        with torch.no_grad():
            old = token_logps(policy, ids)
            ref = token_logps(reference, ids)
        for epoch in range(2):
            logps = token_logps(policy, ids)
            ratio = torch.exp(logps - old)
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            kl = torch.exp(ref - logps) - (ref - logps) - 1
            loss = (((0.04 * kl - surrogate) * mask).sum(1) / mask.sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.2)
            optimizer.step()
        print(iteration, "loss", loss.item(), "kl", (kl * mask).sum().item() / mask.sum().item())


if __name__ == "__main__":
    main()
