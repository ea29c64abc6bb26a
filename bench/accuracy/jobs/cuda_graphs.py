"""CUDA graphs with their private pools, by hand.

`python cuda_graphs.py NAME` as in training.py.
"""

from training import main


def captured_inference():
    """A forward pass in a graph, replayed; its pool stays beside the usual one."""

    def build():
        import torch

        model = torch.nn.Sequential(
            *[layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]
        ).cuda()
        inputs, side = torch.randn(4096, 2048, device="cuda"), torch.cuda.Stream()
        with torch.no_grad():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    model(inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                answer = model(inputs)
            other = torch.cuda.CUDAGraph()
            with torch.cuda.graph(other, pool=graph.pool()):
                second = model(answer)

        def step(batch):
            inputs.copy_(batch)
            graph.replay()
            other.replay()
            return model(second.detach().clone()).square().mean()

        model.step = step
        return model, lambda: torch.randn(4096, 2048, device="cuda"), step

    return dict(build=build, opt="sgd", amp=None)


def whole_step():
    """Forward, backward and optimiser in one graph."""

    def build():
        import torch

        model = torch.nn.Sequential(
            *[layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]
        ).cuda()
        inputs, optimiser = (
            torch.randn(4096, 2048, device="cuda"),
            torch.optim.AdamW(model.parameters(), capturable=True),
        )

        def once():
            optimiser.zero_grad(set_to_none=True)
            loss = model(inputs).square().mean()
            loss.backward()
            optimiser.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                once()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = once()

        def step(batch):
            inputs.copy_(batch)
            graph.replay()
            return loss.detach().clone().requires_grad_()

        return model, lambda: torch.randn(4096, 2048, device="cuda"), step

    return dict(build=build, opt="sgd", amp=None)


def graphed_callables():
    def build():
        import torch

        parts = [
            torch.nn.Sequential(
                torch.nn.Linear(2048, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 2048)
            ).cuda()
            for _ in range(3)
        ]
        sample = torch.randn(2048, 2048, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(
            tuple(parts), tuple((sample.detach().clone().requires_grad_(),) for _ in parts)
        )

        def step(batch):
            for part in graphed:
                batch = part(batch)
            return batch.square().mean()

        return (
            torch.nn.ModuleList(parts),
            lambda: torch.randn(2048, 2048, device="cuda", requires_grad=True),
            step,
        )

    return dict(build=build, opt="sgd", amp=None)


JOBS = {
    "graph_inference": captured_inference,
    "graph_whole_step": whole_step,
    "graph_callables": graphed_callables,
}

if __name__ == "__main__":
    main(JOBS, steps=4)
