"""Jobs that the clocks are tuned on, beside those of ../../accuracy/jobs: what those have little of.

`python further.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, lm, module, torchvision_model, transformers_model
from training import main


def perceptron(width, depth):
    def make(torch):
        from torch import nn

        return nn.Sequential(
            *[part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
        )  # fmt: skip

    return make


def net_of_blocks(width, norm):
    def make(torch):
        from torch import nn

        norms = dict(
            batch=nn.BatchNorm2d, group=lambda c: nn.GroupNorm(8, c), instance=nn.InstanceNorm2d
        )

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = (nn.Conv2d(width, width, 3, 1, 1) for _ in range(2))
                self.n, self.o = (norms[norm](width) for _ in range(2))

            def forward(self, x):
                y = nn.functional.silu(self.n(self.a(x)))
                return nn.functional.silu(x + self.o(self.b(y)))

        return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *[Block() for _ in range(6)])

    return make


def squares(torch, m, b):
    return m(b).float().pow(2).mean()


def values(*shape):
    return lambda torch: torch.randn(*shape, device="cuda")


JOBS = {
    "unet_blocks_group_bf16": lambda: module(
        net_of_blocks(128, "group"), values(16, 3, 64, 64), squares, amp="bf16"
    ),
    "unet_blocks_batch_fp16": lambda: module(
        net_of_blocks(64, "batch"), values(32, 3, 128, 128), squares, amp="fp16"
    ),
    "unet_blocks_instance_fp32": lambda: module(
        net_of_blocks(96, "instance"), values(8, 3, 96, 96), squares
    ),
    "perceptron_bf16": lambda: module(
        perceptron(2048, 8), values(4096, 2048), squares, opt="adamw", amp="bf16"
    ),
    "perceptron_small": lambda: module(perceptron(256, 24), values(256, 256), squares),
    "gpt2_fp32_b2": lambda: hf(
        "GPT2LMHeadModel", "GPT2Config", lm(2, 512), amp=None, opt="adamw", use_cache=False
    ),
    "llama_200m_b8_fp16": lambda: hf(
        "LlamaForCausalLM", "LlamaConfig", lm(8, 512), amp="fp16", opt="adamw", vocab_size=16000,
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, use_cache=False,
    ),
    "resnet50_b64_cl": lambda: torchvision_model("resnet50", 64, cl=True),
    "resnet50_b64_bf16": lambda: torchvision_model("resnet50", 64, amp="bf16"),
    "bert_small_b64_fused": lambda: transformers_model(
        "BertForSequenceClassification", "BertConfig", 64, 128, opt="adamw_fused", hidden_size=512,
        intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(JOBS)
