"""Keeps weights of chosen modules in pinned host memory, and on the GPU for their forward only."""

from __future__ import annotations

from oomph.levers._shared.job import Backward, Job
from oomph.levers._shared.streamed_weights import StreamedWeights


class StreamWeights(StreamedWeights):
    """Weights live in pinned host memory and are copied to the GPU ahead of their module's forward.

    Needs: inference, and host memory for the weights, up to twice (PyTorch rounds pinned
    memory to powers of two). Changes: the GPU holds the weights of two of the modules, whatever their
    number; while one runs, a separate stream copies the next one's. Results: bitwise the
    same. Its time is the weights' bytes over the link's bandwidth, minus what computation
    hides: the larger the batch, the less it costs.

    Weights that the script writes to between calls are copied again, unless it writes through `.data`.
    """

    name = "stream_weights"

    def install(self, job: Job) -> None:
        """As there; training needs gradients."""
        super().install(job)
        job.on_backward.append(self._backward)

    def _backward(self, call: Backward) -> None:
        if self.used:
            raise self.refuse("it calls backward, but weights in host memory have no gradients")


LEVER = StreamWeights
