"""Serving engines, and what they do to the recorder: their engine is a fork of the script. Those with vLLM need it: `requirements.txt`
does not install it."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import time

import pytest

from tests.support import schemas
from tests.support.command import OOMPH, command

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


WORKERS = """
import multiprocessing
import os

import torch

def worker(index):
    torch.cuda.set_device(index)
    kept = torch.ones(1 << 28, device="cuda")
    # At once: two workers write to one pipe.
    os.write(1, f"worker {torch.cuda.current_device()} {torch.cuda.memory_allocated()}\\n".encode())

def engine():
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=worker, args=(index,)) for index in range(2)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    print("status", [one.exitcode for one in workers])

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=engine)
    process.start()
    process.join()
"""


def test_forks_of_a_fork_use_a_gpu_each(oomph):
    """Two GPUs have a board for ranks: that the script looked at it is no use of a GPU."""
    run = oomph(WORKERS, gpu="l40s:2")
    assert "status [0, 0]" in run.out, run.err
    assert "worker 0 1073741824" in run.out and "worker 1 1073741824" in run.out
    # Each left a record of its own.
    assert sorted(one["device"] for one in run.json["ranks"]) == [0, 1]


def test_serve_fit_says_in_a_line_what_is_wrong(tmp_path):
    def said(model, *options):
        done = command(tmp_path, "serve-fit", model, "--gpu", "l40s", *options)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    assert "hf download Qwen/Qwen3-8B config.json" in said("Qwen/Qwen3-8B")
    assert "expected a model's directory" in said(".")
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in said(".")
    (tmp_path / "config.json").write_text("{}")
    assert "give --max-model-len" in said(".")
    assert "--max-model-len: serve-fit sets" in said(".", "--", "--max-model-len=1024")
    assert "l40s:2" in said(".", "--", "--tensor_parallel_size", "2")
    if importlib.util.find_spec("vllm") is None:
        assert "pip install vllm" in said(".", "--max-model-len", 1024)


PREPARED = """
import atexit
import ctypes
import gc
import importlib.metadata
import sys
import threading
import time
import os
import torch
import vllm
from vllm import config
print("in the script", gc.isenabled())
from vllm.model_executor.models import registry
from flashinfer import sampling

print("looks", registry._run_in_subprocess(lambda: "here"))

from vllm.v1.engine import core
from vllm.v1.worker.gpu_worker import Worker

before = gc.get_freeze_count()
there = [[] for _ in range(300)]
print("frozen", before > 1000, Worker().init_device(), gc.get_freeze_count() >= before + 300)
cycle = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda")]
cycle.append(cycle)
del cycle
Worker().init_device()
gc.collect()
collected = []
gc.callbacks.append(lambda phase, about: phase == "start" and about["generation"] == 2 and collected.append(1))
core.EngineCoreProc().shutdown()
print("collected", len(collected), gc.collect() >= 0, len(collected))

from vllm.compilation.decorators import support_torch_compile

@support_torch_compile
class Model:
    _aot_compilation_path = "saved"

    def aot_compile(self):
        return gc.isenabled()

print("compiles", Model().aot_compile(), gc.isenabled())
Model().save_aot_compiled_function()
print("saved", "here" if os.path.exists("saved") else "elsewhere")
from vllm.utils import jit_monitor
jit_monitor.activate()

def plugins():
    return [one.name for one in importlib.metadata.entry_points(group="plugins")]

distributions, read = importlib.metadata.distributions, []
importlib.metadata.distributions = lambda: read.append(1) or distributions()
print("plugins", plugins(), plugins(), len(read))
os.mkdir("later-1.dist-info")
for name, text in {"METADATA": "Name: later", "entry_points.txt": "[plugins]\\nlater = later"}.items():
    with open(f"later-1.dist-info/{name}", "w") as file:
        file.write(text)
sys.path.append(os.getcwd())
print("plugins", plugins())

from triton.runtime import cache
for one in threading.enumerate():
    if one.name == "oomph-ahead":
        one.join()
print("hashed", cache.triton_key.cache_info().currsize)
print("samples", sampling.gen_sampling_module().build_and_load().softmax(torch.ones(1, device="cuda")))
print("held", torch.cuda.memory_allocated() >> 20)

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()
atexit.register(lambda: print("in the end", thread.is_alive()))
thread = threading.Thread(target=time.sleep, args=(0.5,))
thread.start()
ctypes.CDLL(None).printf(b"in C")
"""

MONITORS = """
def _setup_tilelang_jit_hook():
    import tilelang

def activate():
    _setup_tilelang_jit_hook()
"""

LOADS = """
import gc

print("imports", gc.isenabled())
"""

# As vLLM's decorator gives a class its method.
SAVES = """
import os
import time

def _support_torch_compile(model):
    def save_aot_compiled_function(self):
        time.sleep(0.5)
        with open(self._aot_compilation_path, "w") as file:
            file.write(str(os.getpid()))

    model.save_aot_compiled_function = save_aot_compiled_function
    return model

def support_torch_compile(model):
    return _support_torch_compile(model)
"""

ENDS = """
import gc

class EngineCoreProc:
    def shutdown(self):
        gc.collect()
"""

STARTS = """
class Worker:
    def init_device(self):
        return "starts"

    determine_available_memory = initialize_from_config = compile_or_warm_up_model = None
"""


def test_vllm_starts_nothing_that_a_rehearsal_has_no_use_for(oomph, tmp_path):
    """Stand-ins of the modules that are stepped into: vLLM itself is not among the packages of the tests."""
    refuses = "def {}(*args):\n    raise RuntimeError('a process, or nvcc')\n"
    sets = "import os\nprint('set', os.environ['HUMMING_DISABLE_PARALLEL_BUILD'], os.environ['VLLM_NO_USAGE_STATS'], os.environ['OMP_WAIT_POLICY'])\n"
    for name, text in {
        "vllm/__init__.py": sets,
        "vllm/config.py": LOADS,
        "vllm/compilation/__init__.py": "",
        "vllm/compilation/decorators.py": SAVES,
        "vllm/model_executor/__init__.py": "",
        "vllm/model_executor/models/__init__.py": "",
        "vllm/model_executor/models/registry.py": refuses.format("_run_in_subprocess"),
        "vllm/v1/__init__.py": "",
        "vllm/v1/engine/__init__.py": "",
        "vllm/v1/engine/core.py": ENDS,
        "vllm/v1/worker/__init__.py": "",
        "vllm/v1/worker/gpu_worker.py": STARTS,
        "vllm/utils/__init__.py": "",
        "vllm/utils/jit_monitor.py": MONITORS,
        "tilelang.py": "print('TileLang is imported')\n",
        "flashinfer/__init__.py": "",
        "flashinfer/sampling.py": refuses.format("gen_sampling_module"),
    }.items():
        place = tmp_path / "packages" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    # What the user sets counts.
    places = {"PYTHONPATH": str(tmp_path / "packages"), "PATH": "/usr/bin:/bin"}
    run = oomph(PREPARED, env=places | {"VLLM_NO_USAGE_STATS": "0"})
    assert run.status == 0, run.err
    assert "set 1 0 PASSIVE" in run.out and "looks here" in run.out and "samples None" in run.out
    assert "frozen True starts True" in run.out and "held 0" in run.out, run.out
    assert "collected 0 True 1" in run.out, run.out
    assert "hashed 1" in run.out and "TileLang" not in run.out, run.out
    # No garbage is looked for while it imports, and in the script again afterwards.
    assert "imports False" in run.out and "in the script True" in run.out, run.out
    assert "compiles False True" in run.out, run.out
    assert "plugins [] [] 1" in run.out and "plugins ['later']" in run.out, run.out
    assert "saved elsewhere" in run.out and (tmp_path / "saved").read_text() != "", run.out
    # As Python ends, but for taking all apart.
    assert "in the end False" in run.out and "in C" in run.out and "taken apart" not in run.out
    assert any("FlashInfer" in one["what"] for one in run.json["assumptions"]), run.json


def stand_in(place, server, version="0.26.0"):
    """A package called vLLM whose `vllm serve` is `server`, and a model of two heads; the environment that has it."""
    for name, text in {
        "vllm/__init__.py": "",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/cli/__init__.py": "",
        "vllm/entrypoints/cli/main.py": server,
        "vllm/v1/__init__.py": "",
        "vllm/v1/core/__init__.py": "",
        "vllm/v1/core/kv_cache_utils.py": CACHES,
        "vllm/v1/worker/__init__.py": "",
        "vllm/v1/worker/gpu_worker.py": WORKER,
        f"vllm-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
    }.items():
        file = place / "packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (place / "model").mkdir()
    config = dict(num_attention_heads=2, max_position_embeddings=1024, torch_dtype="bfloat16")
    (place / "model" / "config.json").write_text(json.dumps(config))
    return os.environ | {"PYTHONPATH": str(place / "packages"), "COLUMNS": "100"}


CACHES = """
def _check_enough_kv_cache_memory(available, needed):
    if needed() > available:
        raise ValueError(f"{needed()} bytes are needed")

def get_kv_cache_capacity(config, cache):
    return 16 * cache.num_blocks, 16 * cache.num_blocks / 1024
"""

# Of 8 GiB of weights, 1 GiB of activations and 16 MiB for a request of 1,024 tokens.
WORKER = """
import torch
from types import SimpleNamespace

class Worker:
    vllm_config, model_config = None, SimpleNamespace(max_model_len=1024)

    def init_device(self):
        self.requested_memory = int(0.92 * torch.cuda.mem_get_info()[1])
        self.weights = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        self.model_runner = SimpleNamespace(model_memory_usage=8 << 30, capture_model=lambda: 0)

    def determine_available_memory(self):
        self.peak_activation_memory = 1 << 30
        return self.requested_memory - (9 << 30)

    def initialize_from_config(self, config):
        pass

    def compile_or_warm_up_model(self):
        self.model_runner.capture_model()
"""

# vLLM imports torch before its workers.
SERVER = """
import time
from types import SimpleNamespace

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker.gpu_worker import Worker

worker = Worker()
worker.init_device()
available = worker.determine_available_memory()
kv_cache_utils._check_enough_kv_cache_memory(available, lambda: 16 << 20)
cache = SimpleNamespace(size=available)
worker.initialize_from_config(SimpleNamespace(num_blocks=available >> 18, kv_cache_tensors=[cache]))
worker.compile_or_warm_up_model()
print("Application startup complete.", flush=True)
time.sleep(600)
"""


def test_serve_fit_says_how_much_a_model_lacks_whose_weights_find_no_room(tmp_path):
    environment = stand_in(tmp_path, SERVER)
    words = [OOMPH, "serve-fit", "model", "--gpu", "rtx-4060", "--json", "fit.json"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)  # fmt: skip
    found = schemas.read((tmp_path / "fit.json").read_text())
    assert done.returncode == 3, done.stderr + done.stdout
    assert [start["outcome"] for start in found["starts"]] == ["out_of_memory"]
    assert found["chosen"] is None and found["measured"]["outcome"] == "ready"
    needs = found["needs"]
    assert needs["weights_bytes"] == 8 * GIB and 15 << 20 < needs["kv_cache_bytes"] < 17 << 20
    assert GIB <= needs["other_bytes"] < 2 * GIB
    # Two heads: no more than two GPUs share them.
    ways = {(one["gpu"] == "rtx-4060", one["gpus"], *one["flags"]) for one in found["would_fit"]}
    assert ways == {(True, 2), (False, 1), (True, 1, "--quantization", "fp8")}
    assert "does not fit" in done.stdout and "are missing" in done.stdout
    assert "calculated, not started" in done.stdout and "to see what is needed" in done.stdout


SLEEPS = "import os, time\nopen('process', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("number", "why", "status"),
    [(signal.SIGTERM, "ended by SIGTERM", 4), (signal.SIGINT, "interrupted", 130)],
)
def test_serve_fit_that_is_ended_says_so_and_leaves_no_server(tmp_path, number, why, status):
    environment = stand_in(tmp_path, SLEEPS)
    words = [OOMPH, "serve-fit", "model", "--gpu", "l40s"]
    search = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        end = time.monotonic() + 120
        while not ((tmp_path / "process").exists() and (tmp_path / "process").read_text()):
            assert search.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        search.send_signal(number)
        out, _ = search.communicate(timeout=60)
    finally:
        search.kill()
    assert search.returncode == status
    assert f"stopped   {why}: other flags were not tried" in out, out
    server = int((tmp_path / "process").read_text())
    assert not os.path.exists(f"/proc/{server}")


# The engine is a fork, and is killed when it has started; in the meantime it goes on.
KILLED = """
import multiprocessing
import os
import pathlib
import signal
import time

import torch

def engine(text):
    exec(text.partition("print")[0], {})
    place = pathlib.Path("run", f"process-{os.getpid()}", "record.json")
    end = time.monotonic() + 60
    while not place.exists() and time.monotonic() < end:
        time.sleep(0.05)
    # It is writing another one.
    place.with_name("trace.pickle.part").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=engine, args=(SERVER,))
    process.start()
    process.join()
    print("status", process.exitcode)
"""


def test_an_engine_that_is_killed_has_left_its_record(oomph, tmp_path):
    environment = stand_in(tmp_path, SERVER)
    run = oomph(f"SERVER = {SERVER!r}\n" + KILLED, env={"PYTHONPATH": environment["PYTHONPATH"]})
    assert "status -9" in run.out and run.status == 0, run.err
    engine = run.json["engine"]
    assert engine["weights_bytes"] == 8 * GIB and engine["kv_cache_blocks"] > 1000
    assert run.json["peak"]["allocated_bytes"] == 8 * GIB
    assert not list((tmp_path / "run").rglob("*.part"))
    # The version is the one that was compared with GPUs.
    assert not any(one["kind"] == "engine" for one in run.json["assumptions"])


def test_an_engine_that_was_not_compared_with_a_gpu_is_an_assumption(oomph, tmp_path):
    environment = stand_in(tmp_path, SERVER, "0.31.0")
    run = oomph(f"SERVER = {SERVER!r}\n" + KILLED, env={"PYTHONPATH": environment["PYTHONPATH"]})
    assert run.json["engine"]["version"] == "0.31.0", run.err
    what = [one["what"] for one in run.json["assumptions"] if one["kind"] == "engine"]
    assert len(what) == 1 and "vLLM 0.31.0 was never compared with a GPU (0.26.0 was)" in what[0]


def test_another_engine_is_an_assumption(oomph, tmp_path):
    (tmp_path / "packages" / "sglang").mkdir(parents=True)
    (tmp_path / "packages" / "sglang" / "__init__.py").write_text("")
    script = "import torch, sglang\ntorch.ones(1 << 20, device='cuda')\n"
    run = oomph(script, env={"PYTHONPATH": str(tmp_path / "packages")})
    what = [one["what"] for one in run.json["assumptions"] if one["kind"] == "engine"]
    assert len(what) == 1 and what[0].startswith("sglang was never started"), run.json


# The engine ends by itself, with a request in between, which may need more than its start did.
ENDS_ITSELF = """
import multiprocessing
import os
import pathlib
import sys
import time

import torch

def engine(text, request):
    started = {}
    exec(text.partition("print")[0], started)
    place = pathlib.Path("run", f"process-{os.getpid()}", "record.json")
    end = time.monotonic() + 60
    while not place.exists() and time.monotonic() < end:
        time.sleep(0.05)
    print("kept", place.stat().st_ino, flush=True)
    torch.empty(request, dtype=torch.uint8, device="cuda")

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=engine, args=(SERVER, REQUEST))
    process.start()
    process.join()
    [place] = pathlib.Path("run").glob("process-*/record.json")
    print("left", place.stat().st_ino)
"""


@pytest.mark.parametrize("request_bytes", [0, GIB])
def test_an_engine_whose_requests_need_no_more_than_its_start_writes_one_record(
    oomph, tmp_path, request_bytes
):
    environment = stand_in(tmp_path, SERVER)
    code = f"SERVER, REQUEST = {SERVER!r}, {request_bytes}\n" + ENDS_ITSELF
    run = oomph(code, env={"PYTHONPATH": environment["PYTHONPATH"]})
    assert run.status == 0, run.err
    kept, left = (re.search(rf"{word} (\d+)", run.out)[1] for word in ("kept", "left"))
    assert (kept == left) == (not request_bytes)
    assert run.json["peak"]["allocated_bytes"] == 8 * GIB + request_bytes


WITHOUT_CONFIG = """
from vllm.engine.arg_utils import EngineArgs

EngineArgs().create_engine_config()
"""


def test_vllm_without_a_config_says_what_a_rehearsal_needs(oomph, tmp_path):
    place = tmp_path / "packages" / "vllm" / "engine"
    place.mkdir(parents=True)
    (place.parent / "__init__.py").write_text("")
    (place / "__init__.py").write_text("")
    (place / "arg_utils.py").write_text(
        "class EngineArgs:\n    model = 'someone/gated'\n    def create_engine_config(self): raise OSError('no connection')\n"
    )
    places = {"PYTHONPATH": str(tmp_path / "packages")}
    run = oomph("import torch\n" + WITHOUT_CONFIG, env=places)
    assert run.status == 1 and run.json["failure"] == "OSError: no connection"
    [line] = [line for line in run.err.splitlines() if line.startswith("oomph: ")]
    assert "hf download someone/gated config.json" in line and "hf auth login" in line


PYDANTIC = """
import sys, torch

class ValidationError(ValueError):
    __module__ = "pydantic_core._pydantic_core"
    def __str__(self):
        return "1 validation error for ModelConfig\\n  Value error, ..."
    def errors(self, **what):
        return [dict(loc=(), msg="Value error, 14 heads"), dict(loc=("parallel", "size"), msg="a number is wanted")]

raise ValidationError
"""


def test_what_pydantic_says_is_the_failure_and_not_how_many_errors_there_are(oomph):
    run = oomph(PYDANTIC)
    said = "ValidationError: Value error, 14 heads; parallel.size: a number is wanted"
    assert run.status == 1 and run.json["failure"] == said


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
def test_two_gpus_share_a_model(oomph, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    code = ENGINE.replace("LENGTH", "4096, tensor_parallel_size=2").replace("SHARE", "0.5")
    run = oomph(code, gpu="l40s:2", env={"HF_HUB_OFFLINE": "1"})
    assert run.status == 0, run.err
    engine = run.json["engine"]
    # Each has one of the two heads of keys and values.
    assert engine["kv_cache_bytes"] == engine["kv_cache_blocks"] * 16 * 4 * 2 * 128 * 2
    assert {one["device"] for one in run.json["ranks"]} == {0, 1}


@with_vllm
def test_serve_fit_finds_the_longest_request(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    done = command(
        tmp_path, "serve-fit", "model", "--gpu", "l40s", "--memory", "1700MiB", "--keep-results", "--json", "fit.json", "--",
        "--enforce-eager",
    )  # fmt: skip
    found = schemas.read((tmp_path / "fit.json").read_text())
    best = found["starts"][found["chosen"]]
    assert best["outcome"] == "ready" and best["engine"]["requests"] >= 1, done.stderr
    assert found["command"].startswith("vllm serve model --max-model-len "), done.stdout


@with_vllm
def test_a_cache_without_room_for_one_request_is_out_of_memory(oomph, tmp_path):
    run = start(oomph, tmp_path, 32768, 0.02, "l40s")
    assert run.status == 3, run.err
    assert run.json["verdict"] == "out_of_memory"
    assert run.json["engine"]["needed_bytes"] == 32768 * 4 * 2 * 2 * 128 * 2
    assert "one request of 32,768 tokens needs 128.0 MiB" in run.out
