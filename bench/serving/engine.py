"""Starts vLLM offline up to its first request: `python engine.py MODEL '{"max_model_len": 8192}'`. No weights and no tokenizer are read."""

import json
import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    given = {"load_format": "dummy", "skip_tokenizer_init": True} | json.loads(sys.argv[2])
    given.pop("server", None)
    engine = LLM(sys.argv[1], **given)
    sampling = SamplingParams(max_tokens=4, detokenize=False)
    answer = engine.generate({"prompt_token_ids": [1, 2, 3, 4]}, sampling)
    print("tokens", list(answer[0].outputs[0].token_ids))
