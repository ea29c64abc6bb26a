"""Starts vLLM offline up to its first request: `python engine.py MODEL '{"max_model_len": 8192}'`. No weights and no tokenizer are read.

`"server": true` in the arguments profiles as many tokens as `vllm serve` does.
"""

import contextlib
import json
import sys


def watch_profile():
    """Says what vLLM 0.27 and later would set apart, by the same profile run: what the GPU no longer has free after it, and the
    peak above what PyTorch then has in use. Up to 0.26 it is the weights, the peak above them, and what is not PyTorch's."""
    import torch
    from vllm.v1.worker import gpu_worker

    original = gpu_worker.memory_profiling

    @contextlib.contextmanager
    def profiling(*args, **kwargs):
        with original(*args, **kwargs) as result:
            yield result
            peak = torch.cuda.max_memory_allocated()
        held = result.before_create.free_memory - result.after_profile.free_memory
        print("set apart by 0.27", held + peak - torch.cuda.memory_allocated(), flush=True)

    gpu_worker.memory_profiling = profiling


if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    given = {"load_format": "dummy", "skip_tokenizer_init": True} | json.loads(sys.argv[2])
    if given.pop("server", False):
        tokens, _ = EngineArgs.get_batch_defaults(given.get("tensor_parallel_size", 1))
        given.setdefault("max_num_batched_tokens", tokens[UsageContext.OPENAI_API_SERVER])
    watch_profile()
    engine = LLM(sys.argv[1], **given)
    sampling = SamplingParams(max_tokens=4, detokenize=False)
    answer = engine.generate({"prompt_token_ids": [1, 2, 3, 4]}, sampling)
    print("tokens", list(answer[0].outputs[0].token_ids))
