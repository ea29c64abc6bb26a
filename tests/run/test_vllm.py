"""Serving engines, and what they do to the recorder: their engine is a fork of the script. Those with vLLM need it: `requirements.txt`
does not install it."""

import importlib.util
import json

import pytest

GIB = 1 << 30

with_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: pip install vllm"
)

FORKS = """
import ctypes
import multiprocessing

import torch

def engine():
    kept = torch.ones(1 << 28, device="cuda")
    print("engine", torch.cuda.memory_allocated(), flush=True)

if __name__ == "__main__":
    version = ctypes.c_int()
    ctypes.CDLL(None).cudaRuntimeGetVersion(ctypes.byref(version))
    print("on the CPU", (torch.zeros(3) + 1).sum().item(), version.value // 1000, torch.cuda.device_count())
    process = multiprocessing.get_context("fork").Process(target=engine)
    process.start()
    process.join()
    print("status", process.exitcode)
"""


def test_a_fork_uses_the_gpu_that_its_parent_only_looked_at(oomph):
    run = oomph(FORKS)
    assert "engine 1073741824" in run.out and "status 0" in run.out, run.err
    assert run.status == 0 and run.json["verdict"] == "fits"
    assert run.json["peak"]["used_bytes"] > GIB
    # The fork left a record of its own: nothing says that it ran without the recorder.
    assert not any(one["kind"] == "processes" for one in run.json["assumptions"])


CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=1024, intermediate_size=2816, num_attention_heads=8,
    num_hidden_layers=4, num_key_value_heads=2, head_dim=128, max_position_embeddings=32768, rms_norm_eps=1e-5,
    rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16", vocab_size=32000,
)  # fmt: skip

ENGINE = """
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    engine = LLM("model", load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=LENGTH, gpu_memory_utilization=SHARE)
    answer = engine.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, detokenize=False))
    print("tokens", list(answer[0].outputs[0].token_ids))
"""


def start(oomph, tmp_path, length, share, gpu):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    code = ENGINE.replace("LENGTH", str(length)).replace("SHARE", str(share))
    return oomph(code, gpu=gpu, env={"HF_HUB_OFFLINE": "1"})


@with_vllm
def test_vllm_starts_up_to_its_first_request(oomph, tmp_path):
    run = start(oomph, tmp_path, 32768, 0.5, "l40s")
    assert run.status == 0, run.err
    assert "tokens [0, 0, 0, 0]" in run.out
    engine = run.json["engine"]
    assert engine["weights_bytes"] > 150 << 20 and engine["activation_bytes"] > 0
    # A block of 16 tokens has a key and a value of two heads in four layers.
    assert engine["kv_cache_bytes"] == engine["kv_cache_blocks"] * 16 * 4 * 2 * 2 * 128 * 2
    assert engine["kv_cache_tokens"] == engine["kv_cache_blocks"] * 16
    assert (
        f"KV cache {engine['kv_cache_bytes'] / GIB:.1f} GiB: {engine['kv_cache_tokens']:,} tokens"
        in run.out
    )
    # What the engine says it takes, it takes.
    taken = sum(engine[part] for part in ("kv_cache_bytes", "weights_bytes"))
    assert taken < run.json["peak"]["used_bytes"] < 0.6 * run.json["gpu"]["memory_bytes"]


@with_vllm
def test_a_cache_without_room_for_one_request_is_out_of_memory(oomph, tmp_path):
    run = start(oomph, tmp_path, 32768, 0.02, "l40s")
    assert run.status == 3, run.err
    assert run.json["verdict"] == "out_of_memory"
    assert run.json["engine"]["needed_bytes"] == 32768 * 4 * 2 * 2 * 128 * 2
    assert "one request of 32,768 tokens needs 128.0 MiB" in run.out
