"""`oomph estimate` against `oomph run` of the same model, on the virtual GPU:

    python bench/estimate/run.py OUT.json [--only NAME,…] [--again]

Each case is a configuration of transformers and a workload. Its directory gets config.json and a
safetensors file whose header is true and whose weights are a hole: `oomph estimate` reads headers only, and the
job makes random weights. Results are written after each case. A second command renews the estimates and keeps the runs;
`--again` renews both. `--table` prints the file.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GPU = "h200"
MIB = 2**20

LLAMA = dict(
    kind="LlamaForCausalLM", hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4, vocab_size=32000, max_position_embeddings=2048,
)  # fmt: skip
QWEN3 = dict(
    kind="Qwen3ForCausalLM", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
    tie_word_embeddings=True, max_position_embeddings=40960,
)  # fmt: skip
LORA = dict(
    r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]
)

CASES = {
    "llama_1b": (LLAMA, None, dict(batch=8, tokens=2048, dtype="bfloat16")),
    "gpt2": (dict(kind="GPT2LMHeadModel"), None, dict(batch=8, tokens=512, train=True)),
    "qwen2": (
        dict(
            kind="Qwen2ForCausalLM", hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
            num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True,
        ),
        None, dict(batch=4, tokens=1024, train=True, autocast="bfloat16"),
    ),
    "bert": (
        dict(kind="BertForSequenceClassification"), None, dict(batch=32, tokens=256, train=True),
    ),
    "t5": (
        dict(
            kind="T5ForConditionalGeneration", d_model=768, d_ff=3072, num_layers=12, num_heads=12,
            decoder_start_token_id=0,
        ),
        None, dict(batch=8, tokens=256, train=True),
    ),
    "whisper": (
        dict(
            kind="WhisperForConditionalGeneration", d_model=768, encoder_layers=12, decoder_layers=12,
            encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
            decoder_ffn_dim=3072, vocab_size=51865,
        ),
        None, dict(batch=16, tokens=256, dtype="float16"),
    ),
    "mixtral": (
        dict(
            kind="MixtralForCausalLM", hidden_size=1024, intermediate_size=2048, num_hidden_layers=12,
            num_attention_heads=16, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
        ),
        None, dict(batch=4, tokens=1024, dtype="bfloat16", train=True),
    ),
    "llama_lora": (LLAMA, LORA, dict(batch=4, tokens=1024, dtype="bfloat16", train=True)),
    # Kept aside until the estimator was finished.
    "mistral": (
        dict(
            kind="MistralForCausalLM", hidden_size=2560, intermediate_size=7680, num_hidden_layers=20,
            num_attention_heads=32, num_key_value_heads=8, head_dim=128, sliding_window=None,
        ),
        None, dict(batch=6, tokens=3072, dtype="float16"),
    ),
    "vit": (
        dict(kind="ViTForImageClassification"), None,
        dict(batch=64, train=True, autocast="bfloat16", optimizer="momentum"),
    ),
    "llama_checkpointing": (
        LLAMA, None,
        dict(batch=8, tokens=1024, train=True, autocast="bfloat16", checkpointing=True, accumulation=4),
    ),
    "gpt2_medium": (
        dict(kind="GPT2LMHeadModel", n_embd=1024, n_layer=24, n_head=16), None,
        dict(batch=4, tokens=1024, train=True, autocast="bfloat16", optimizer="adafactor"),
    ),
    # Written later, and run once: nothing was looked at before.
    "mistral_lora": (
        dict(
            kind="MistralForCausalLM", hidden_size=2048, intermediate_size=7168, num_hidden_layers=16,
            num_attention_heads=16, num_key_value_heads=4, head_dim=128, sliding_window=None,
        ),
        dict(
            r=64, lora_alpha=64, lora_dropout=0.0,
            target_modules=[
                "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
            ],
        ),
        dict(batch=2, tokens=4096, dtype="bfloat16", train=True),
    ),
    "bert_large_mlm": (
        dict(
            kind="BertForMaskedLM", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096,
        ),
        None, dict(batch=8, tokens=512, train=True, autocast="bfloat16"),
    ),
    "qwen3_long": (QWEN3, None, dict(batch=1, tokens=16384, dtype="bfloat16")),
    "qwen3_long_checkpointing": (
        QWEN3, None, dict(batch=1, tokens=12288, train=True, autocast="bfloat16", checkpointing=True),
    ),
}  # fmt: skip


def prepare(directory, settings, adapter, dtype):
    import torch
    import transformers

    sys.path.insert(0, str(HERE / "jobs"))
    import model as job

    settings = dict(settings)
    kind = getattr(transformers, settings.pop("kind"))
    config = kind.config_class(**settings)
    config.architectures, config.dtype = [kind.__name__], dtype
    config.save_pretrained(directory)
    if adapter:
        found = dict(peft_type="LORA", **adapter)
        Path(directory, "adapter_config.json").write_text(json.dumps(found))
    made = job.make(directory, getattr(torch, dtype), "meta")
    whole = {n: t for n, t in made.named_parameters() if ".lora_" not in n}
    write(
        Path(directory, "model.safetensors"),
        {n.replace(".base_layer", ""): t for n, t in whole.items()},
    )
    if adapter:
        lora = {n: t for n, t in made.named_parameters() if ".lora_" in n}
        write(
            Path(directory, "adapter_model.safetensors"),
            {f"base_model.model.{n}": t for n, t in lora.items()},
        )


def write(path, tensors):
    """A safetensors file with a hole in the place of the weights. Tied ones are named once."""
    names = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = dict(
            dtype=names[str(tensor.dtype)], shape=list(tensor.shape), data_offsets=[begin, end]
        )
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def oomph(*words):
    command = [os.path.join(os.path.dirname(sys.executable), "oomph"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done


def workload_words(load):
    words = ["--batch", load["batch"]]
    words += ["--tokens", load["tokens"]] if "tokens" in load else []
    dtype = load.get("dtype", "float32")
    words += ["--dtype", dtype]
    words += [f"--{word}" for word in ("train", "checkpointing") if load.get(word)]
    for word in ("autocast", "optimizer", "accumulation"):
        words += [f"--{word}", load[word]] if word in load else []
    return words


def measure(name, found, again):
    settings, adapter, load = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        prepare(place, settings, adapter, load.get("dtype", "float32"))
        target = Path(place, "result.json")
        if "run" not in found or again:
            began = time.monotonic()
            job = [HERE / "jobs/model.py", place, *workload_words(load)]
            oomph("run", "-q", "--gpu", GPU, "--json", target, "--out", Path(place, "run"), *job)
            peak = json.loads(target.read_text())["peak"]
            found["run"] = dict(
                allocated=peak["allocated_bytes"], reserved=peak["reserved_bytes"],
                seconds=round(time.monotonic() - began, 1),
            )  # fmt: skip
        oomph("estimate", place, "--gpu", GPU, "--json", target, *workload_words(load))
        estimate = json.loads(target.read_text())
    found["load"] = load
    found["estimate"] = estimate["needs"]
    found["assumptions"] = estimate["assumptions"]
    difference = estimate["needs"]["total_bytes"] / found["run"]["allocated"] - 1
    found["difference"] = round(difference, 5)
    print(name, f"{difference:+.2%}", flush=True)


def table(results):
    print("| case | workload | `oomph run`, allocated | `oomph estimate` | difference |")
    print("| --- " * 5 + "|")
    for name in CASES:
        if name in results:
            found = results[name]
            load = ", ".join(f"{k} {v}" if v is not True else k for k, v in found["load"].items())
            print(
                f"| {name} | {load} | {found['run']['allocated'] / MIB:.0f} MiB "
                f"| {found['estimate']['total_bytes'] / MIB:.0f} MiB | {found['difference']:+.2%} |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    if given.table:
        return table(results)
    for name in given.only.split(",") if given.only else CASES:
        measure(name, results.setdefault(name, {}), given.again)
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
