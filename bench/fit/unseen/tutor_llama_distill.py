"""A small Llama learns from a larger one: both on the GPU, KL over the vocabulary at temperature two plus the usual loss."""

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.optimization import Adafactor


def llama(layers, width, heads):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=width,
            intermediate_size=width * 8 // 3 // 64 * 64,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            use_cache=False,
        )
    )


def distil(student_logits, teacher_logits, labels, T=2.0, alpha=0.7):
    s = student_logits[:, :-1].reshape(-1, student_logits.size(-1))
    t = teacher_logits[:, :-1].reshape(-1, teacher_logits.size(-1))
    soft = F.kl_div(F.log_softmax(s / T, -1), F.softmax(t / T, -1), reduction="batchmean") * T * T
    hard = F.cross_entropy(s, labels[:, 1:].reshape(-1))
    return alpha * soft + (1 - alpha) * hard, soft, hard


def main():
    torch.manual_seed(0)
    device = "cuda"
    with torch.device(device):
        teacher = llama(12, 1024, 16).to(torch.bfloat16).eval()
        student = llama(6, 640, 10)
    optimizer = Adafactor(
        student.parameters(), lr=1e-3, relative_step=False, scale_parameter=False, warmup_init=False
    )
    student.train()
    for step in range(6):
        ids = torch.randint(0, 32000, (4, 512), device=device)
        with torch.no_grad():
            wisdom = teacher(input_ids=ids).logits.float()
        loss, soft, hard = distil(student(input_ids=ids).logits, wisdom, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step}: {loss.item():.3f} (soft {soft.item():.3f}, hard {hard.item():.3f})")


if __name__ == "__main__":
    main()
