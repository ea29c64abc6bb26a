"""Stands in for the parts of torch.cuda that a CPU has not, so that a job's code can be tried without a GPU."""

import contextlib

import torch


class Idle:
    """A stream, event, graph or pool that does nothing."""

    id = (0, 0)

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: Idle()


def nothing(*_, **__):
    return contextlib.nullcontext(Idle())


cuda = torch.cuda
cuda.Stream = cuda.Event = cuda.CUDAGraph = cuda.MemPool = Idle
cuda.stream = cuda.graph = cuda.use_mem_pool = nothing
cuda.current_stream = cuda.default_stream = cuda.graph_pool_handle = Idle
for (
    name
) in "synchronize empty_cache set_per_process_memory_fraction reset_peak_memory_stats".split():
    setattr(cuda, name, lambda *_, **__: None)
cuda.memory_allocated = cuda.memory_reserved = cuda.max_memory_allocated = lambda *_: 0
cuda.mem_get_info = lambda *_: (1 << 30, 1 << 30)
cuda.make_graphed_callables = lambda made, *_, **__: made
torch.Tensor.record_stream = lambda *_: None
torch.Tensor.pin_memory = lambda self, *_: self
torch.compiler.set_stance("force_eager")
