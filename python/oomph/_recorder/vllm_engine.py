"""Records what vLLM's engine decides by the memory of a virtual GPU: the size of its KV cache, or that nothing is left for one.

Its profile run, its cache and its CUDA graphs are PyTorch's and the virtual GPU's affair, as in any program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.metadata
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph._import_hooks import around_import, before_import, on_import
from oomph._recorder import read_ahead
from oomph._recorder.beside import Beside
from oomph._recorder.garbage import without_collections
from oomph._virtual_gpu.triton_beside import KernelsBeside

_COMPILED = "FlashInfer compiles its samplers with nvcc, which is not installed: they are launched without their code"
_NEEDED = (
    "oomph: vLLM got no config.json of {model}: it is neither a directory here nor to be had from the Hugging Face Hub. With --load-format dummy a "
    "directory with that file is enough: hf download {model} config.json --local-dir DIRECTORY (of a gated model after hf auth login), and give "
    "DIRECTORY in its place"
)
_OTHERS = ("sglang", "lmdeploy", "tensorrt_llm", "llama_cpp")
_NEVER_STARTED = "{} was never started on a virtual GPU by those who wrote it: what it sets apart, and so its verdict, may be wrong"
_TOKENS = "vLLM's samplers are not computed: each token that it generates is token 0"


# What vLLM and its kernels start beside the engine and a rehearsal has no use for, a third of a first start's CPU time: a
# launcher of Humming's kernels, compiled whether a model has them or not, and figures of the GPU that vLLM's authors collect.
_NOT_NEEDED = {"HUMMING_DISABLE_PARALLEL_BUILD": "1", "VLLM_NO_USAGE_STATS": "1"}


# Much is imported when each of these is, one after another.
_HEAVY = ("torch._dynamo", "vllm.config", "vllm.entrypoints.llm", "vllm.v1.worker.gpu.model_runner")
# And these bring most of the rest.
_IMPORTS = ("vllm", *_HEAVY, "vllm.entrypoints.cli.main", "vllm.v1.worker.gpu_worker")


def watch(recorder: Any) -> None:
    """Wait for vLLM in the script, and in the processes that it forks."""
    for engine in _OTHERS:
        on_import(engine, lambda module: recorder.assumptions.add("engine", _NEVER_STARTED.format(module.__name__), ""))  # fmt: skip
    for module in _IMPORTS:
        around_import(module, _no_collections)
    if "vllm" in sys.modules:  # which imports torch first
        _prepares(recorder)
    else:
        before_import("vllm", lambda: _prepares(recorder))
    on_import("vllm.engine.arg_utils", lambda module: _says_what_a_model_needs(module.EngineArgs))
    on_import("vllm.model_executor.models.registry", _looks_in_this_process)
    beside = Beside()
    recorder.before_record.append(lambda _: beside.wait())
    on_import("vllm.compilation.decorators", lambda module: _saves_beside(module, beside))
    on_import("vllm.v1.core.kv_cache_utils", lambda module: _sees_refusal(module, recorder))
    on_import("vllm.v1.engine.core", lambda module: _ends_light(module.EngineCoreProc))
    on_import("vllm.v1.worker.gpu_worker", lambda module: _starts_light(module.Worker))
    kernels = KernelsBeside()
    on_import(
        "vllm.v1.worker.gpu_worker",
        lambda module: _sees_sizes(module.Worker, recorder, beside, kernels),
    )
    on_import(
        "vllm.v1.sample.sampler",
        lambda module: _knows_tokens(module.Sampler, "forward", recorder),
    )
    on_import(
        "vllm.v1.worker.gpu.sample.sampler",
        lambda module: _knows_tokens(module.Sampler, "__call__", recorder),
    )


def _says_what_a_model_needs(arguments: Any) -> None:
    """A model that is neither a directory nor to be had from the Hub: what a rehearsal needs of it is a small file."""
    create = arguments.create_engine_config

    @functools.wraps(create)
    def created(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return create(self, *args, **kwargs)
        except OSError:
            if not os.path.isdir(self.model):
                print(_NEEDED.format(model=self.model), file=sys.stderr, flush=True)
            raise

    arguments.create_engine_config = created


def _looks_in_this_process(registry: Any) -> None:
    """vLLM looks at a model's class in a process of its own, which imports all again: on a GPU an import might take memory."""
    registry._run_in_subprocess = lambda look: look()


def _prepares(recorder: Any) -> None:
    for name, value in _NOT_NEEDED.items():
        os.environ.setdefault(name, value)
    _looks_for_entry_points_once()
    _passes_over_imports()
    for module in _HEAVY:
        on_import(module, lambda _: _passes_over_imports())
    # Triton has a C compiler build a part of its driver when it first asks it; it and Inductor hash their sources, and Triton's
    # library of 400 MB, when they first compile. That goes on while others import.
    on_import("triton.backends.nvidia.driver", lambda module: _ahead(lambda: module.CudaUtils()))
    on_import("triton.runtime.cache", lambda module: _ahead(lambda: module.triton_key()))
    on_import("torch._inductor.codecache", lambda module: _ahead(lambda: module.torch_key()))
    on_import("vllm.utils.jit_monitor", _monitors_no_tilelang)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    if not (shutil.which("nvcc") or os.path.exists(os.path.join(home, "bin", "nvcc"))):
        on_import("flashinfer.sampling", lambda module: _samples_without_code(module, recorder))


def _looks_for_entry_points_once() -> None:
    """vLLM asks for the entry points of group after group, and each time Python reads the metadata of all that is installed."""
    original = importlib.metadata.entry_points
    if not hasattr(getattr(importlib.metadata, "EntryPoints", None), "select"):
        return  # Python 3.9

    @functools.lru_cache(maxsize=1)
    def of_all(places: Any) -> Any:
        return original()

    @functools.wraps(original)
    def entry_points(**wanted: Any) -> Any:
        # A directory has another time where something was installed since.
        places = tuple((place, _modified(place)) for place in sys.path)
        return of_all(places).select(**wanted)

    importlib.metadata.entry_points = entry_points


def _modified(place: str) -> int:
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def _ahead(work: Callable[[], Any]) -> None:
    """Do in a thread what the program asks for later."""

    def run() -> None:
        # What fails here, the program says when it needs it.
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=run, name="oomph-ahead", daemon=True).start()


def _monitors_no_tilelang(monitor: Any) -> None:
    """vLLM imports TileLang, which takes more than a second, only to say when one of its kernels is compiled late."""
    original = getattr(monitor, "_setup_tilelang_jit_hook", None)
    monitor._setup_tilelang_jit_hook = lambda: "tilelang" in sys.modules and original and original()


class _NoCode:
    """Stands for a module of kernels: a launch computes nothing here anyway, and takes no memory that its caller did not allocate."""

    def build_and_load(self) -> _NoCode:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def _samples_without_code(sampling: Any, recorder: Any) -> None:
    def module() -> _NoCode:
        recorder.assumptions.add("values", _COMPILED, "")
        return _NoCode()

    sampling.gen_sampling_module = module


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Imports make a million objects and hardly any garbage: looking for it takes a sixth of their time."""
    with contextlib.nullcontext() if torch.cuda.is_initialized() else without_collections():
        yield


def _saves_beside(decorators: Any, beside: Beside) -> None:
    """What was compiled is saved for later starts, which takes seconds, while the engine goes on."""
    support = decorators._support_torch_compile

    @functools.wraps(support)
    def supported(*args: Any, **kwargs: Any) -> Any:
        model = support(*args, **kwargs)
        compile_ = getattr(model, "aot_compile", None)
        if compile_ is not None:
            # Dynamo and Inductor make what lives; vLLM looks for garbage itself before it measures memory.
            model.aot_compile = without_collections()(compile_)
        save = getattr(model, "save_aot_compiled_function", None)
        if save is not None:
            model.save_aot_compiled_function = lambda self: beside.do(
                lambda: save(self), lambda: os.path.exists(self._aot_compilation_path)
            )
        return model

    decorators._support_torch_compile = supported


def _passes_over_imports() -> None:
    """Collections of garbage pass over what is there, for vLLM imports a million objects and asks for a dozen collections while it
    starts. What exists before a process uses the GPU holds none of its memory."""
    if not torch.cuda.is_initialized():
        gc.freeze()


def _starts_light(worker: Any) -> None:
    initialize = worker.init_device

    @functools.wraps(initialize)
    def initialized(self: Any) -> Any:
        _passes_over_imports()
        return initialize(self)

    worker.init_device = initialized


def _ends_light(engine: Any) -> None:
    """An engine in a process of its own looks for garbage three times before it ends, which takes the process along."""
    shut_down = engine.shutdown

    @functools.wraps(shut_down)
    def ended(self: Any) -> None:
        collect, gc.collect = gc.collect, lambda *generation: 0
        try:
            shut_down(self)
        finally:
            gc.collect = collect

    engine.shutdown = ended


def end(status: int) -> None:
    """End the script's process as Python does, but for taking a million objects apart, which takes longer than a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def _sees_refusal(module: Any, recorder: Any) -> None:
    """The engine ends because its KV cache has no room for one request: that is out of memory, too."""
    check = module._check_enough_kv_cache_memory

    @functools.wraps(check)
    def checked(available_memory: int, get_needed_memory: Any, *rest: Any) -> None:
        try:
            check(available_memory, get_needed_memory, *rest)
        except ValueError as error:
            needed = get_needed_memory()
            recorder.engine["kv_cache_bytes"] = max(available_memory, 0)
            recorder.engine["needed_bytes"] = needed
            recorder.out_of_memory.outside_allocator(error, needed)
            raise

    module._check_enough_kv_cache_memory = checked


def _sees_sizes(worker: Any, recorder: Any, beside: Beside, kernels: KernelsBeside) -> None:
    profile, initialize = worker.determine_available_memory, worker.initialize_from_config
    warm_up = worker.compile_or_warm_up_model

    @functools.wraps(profile)
    def profiled(self: Any, *args: Any) -> Any:
        if recorder.settings.compute is None:  # otherwise each launch is interpreted
            kernels.begin()
        try:
            return profile(self, *args)
        finally:
            recorder.engine.update(
                name="vLLM", version=importlib.metadata.version("vllm"),
                allowed_bytes=int(self.requested_memory),
                weights_bytes=int(self.model_runner.model_memory_usage),
                activation_bytes=max(int(getattr(self, "peak_activation_memory", 0)), 0),
                outside_bytes=max(int(getattr(self, "non_torch_memory", 0)), 0),
                graph_bytes=max(int(getattr(self, "cudagraph_memory_estimate", 0)), 0),
                max_model_len=self.model_config.max_model_len,
            )  # fmt: skip

    @functools.wraps(initialize)
    def initialized(self: Any, config: Any, *args: Any) -> Any:
        caches: Any = sys.modules["vllm.v1.core.kv_cache_utils"]
        tokens, requests = caches.get_kv_cache_capacity(self.vllm_config, config)
        recorder.engine.update(
            kv_cache_bytes=sum(tensor.size for tensor in config.kv_cache_tensors),
            kv_cache_blocks=config.num_blocks, kv_cache_tokens=tokens, requests=requests,
        )  # fmt: skip
        return initialize(self, config, *args)

    @functools.wraps(warm_up)
    def warmed_up(self: Any, *args: Any) -> Any:
        runner = self.model_runner
        capture = runner.capture_model

        def captured() -> Any:
            taken = capture()
            recorder.engine["graph_bytes"] = max(int(taken), 0)
            return taken

        runner.capture_model = captured
        try:
            took = warm_up(self, *args)
        finally:
            del runner.capture_model
        kernels.finish()
        # A server kills its engine in the end, and a busy machine one that ends too slowly: this record is waited for before another.
        keep = recorder.keeping(dict(kind="finished", status=0), may_be_last=True)

        def keep_all() -> None:
            keep()
            read_ahead.keep()

        beside.do(keep_all, lambda: True)
        return took

    worker.determine_available_memory = profiled
    worker.initialize_from_config = initialized
    worker.compile_or_warm_up_model = warmed_up


def _knows_tokens(sampler: Any, method: str, recorder: Any) -> None:
    """What a kernel that does not run leaves in memory is no token: the detokenizer would fail."""
    original = getattr(sampler, method)

    @functools.wraps(original)
    def sampled(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if output.sampled_token_ids is not None:
            output.sampled_token_ids.zero_()
            recorder.assumptions.add("values", _TOKENS, "")
        return output

    setattr(sampler, method, sampled)
