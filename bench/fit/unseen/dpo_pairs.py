"""Direct preference optimization of a small Llama against a frozen copy of itself."""

import copy
import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM


@dataclasses.dataclass(frozen=True)
class DPOConfig:
    beta: float = 0.1
    label_smoothing: float = 0.0
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    pairs: int = 4
    max_length: int = 640
    lr: float = 5e-7
    warmup: int = 2
    max_grad_norm: float = 10.0
    accumulate: int = 2
    steps: int = 4


def pad_to_length(x: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return F.pad(x, (0, length - x.size(1)), value=value)


def preference_batches(cfg: DPOConfig, n: int, seed: int = 0):
    """Prompt + chosen and prompt + rejected, each padded to its own longest."""
    g = torch.Generator().manual_seed(seed)
    lengths = lambda: torch.randint(
        cfg.max_length // 2, cfg.max_length + 1, (cfg.pairs,), generator=g
    )
    for _ in range(n):
        batch = {}
        prompts = torch.randint(60, 200, (cfg.pairs,), generator=g)
        for kind in ("chosen", "rejected"):
            total = lengths()
            longest = int(total.max())
            at = torch.arange(longest)
            ids = torch.randint(3, 32000, (cfg.pairs, longest), generator=g)
            mask = at[None] < total[:, None]
            labels = ids.masked_fill((at[None] < prompts[:, None]) | ~mask, -100)
            batch[f"{kind}_input_ids"] = ids.masked_fill(~mask, 0)
            batch[f"{kind}_attention_mask"] = mask.long()
            batch[f"{kind}_labels"] = labels
        yield batch


def concatenated_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    longest = max(batch["chosen_input_ids"].shape[1], batch["rejected_input_ids"].shape[1])
    out = {}
    for name, fill in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
        rows = [
            pad_to_length(batch[f"{kind}_{name}"], longest, fill) for kind in ("chosen", "rejected")
        ]
        out[name] = torch.cat(rows, dim=0)
    return out


def get_batch_logps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != -100
    labels[labels == -100] = 0
    per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1)


def concatenated_forward(model, batch):
    inputs = concatenated_inputs(batch)
    labels = inputs.pop("labels")
    logits = model(**inputs, use_cache=False).logits.to(torch.float32)
    logps = get_batch_logps(logits, labels)
    return logps.chunk(2)


def preference_loss(cfg, policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    h = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
    if cfg.loss == "ipo":
        losses = (h - 1 / (2 * cfg.beta)) ** 2
    else:
        losses = (
            -F.logsigmoid(cfg.beta * h) * (1 - cfg.label_smoothing)
            - F.logsigmoid(-cfg.beta * h) * cfg.label_smoothing
        )
    rewards = (
        cfg.beta * (policy_chosen - ref_chosen).detach(),
        cfg.beta * (policy_rejected - ref_rejected).detach(),
    )
    return losses, *rewards


def run(cfg: DPOConfig) -> None:
    torch.manual_seed(0)
    llama = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=1024,
    )
    with torch.device("cuda"):
        policy = LlamaForCausalLM(llama).to(torch.bfloat16)
    reference = copy.deepcopy(policy).eval()
    for p in reference.parameters():
        p.requires_grad = False
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lr_lambda=lambda step: min(1.0, (step + 1) / (cfg.warmup + 1))
    )
    batches = preference_batches(cfg, cfg.steps * cfg.accumulate)
    for step in range(cfg.steps):
        accuracy = []
        for _ in range(cfg.accumulate):
            batch = {k: v.cuda(non_blocking=True) for k, v in next(batches).items()}
            policy_logps = concatenated_forward(policy, batch)
            with torch.no_grad():
                reference_logps = concatenated_forward(reference, batch)
            losses, good, bad = preference_loss(cfg, *policy_logps, *reference_logps)
            (losses.mean() / cfg.accumulate).backward()
            accuracy.append((good > bad).float().mean())
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(
            f"step {step}: accuracy {torch.stack(accuracy).mean().item():.2f}, norm {norm.item():.2f}"
        )


if __name__ == "__main__":
    run(DPOConfig())
