"""Event camera gestures with a spiking network: surrogate gradients, and time unrolled in Python."""

import torch
import torch.nn.functional as F


class Spike(torch.autograd.Function):
    """Heaviside forward, fast sigmoid backward."""

    @staticmethod
    def forward(ctx, v, slope):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (ctx.slope * v.abs() + 1.0) ** 2, None


class Trainer:
    channels = [2, 64, 64, 128, 128]
    time_steps = 20
    batch_size = 48
    classes = 11
    size = 64

    def __init__(self, device="cuda"):
        self.device = device
        torch.manual_seed(3)
        # no modules here: three lists of tensors
        self.weights, self.decays, self.thresholds = [], [], []
        for i, o in zip(self.channels[:-1], self.channels[1:]):
            w = torch.empty(o, i, 3, 3, device=device)
            torch.nn.init.kaiming_normal_(w)
            self.weights.append(w.requires_grad_())
            self.decays.append(torch.full((1, o, 1, 1), 2.0, device=device, requires_grad=True))
            self.thresholds.append(torch.ones(1, o, 1, 1, device=device, requires_grad=True))
        self.readout = (
            torch.randn(self.classes, self.channels[-1], device=device) * 0.05
        ).requires_grad_()
        self.optimizer = torch.optim.NAdam(
            [
                {"params": self.weights + [self.readout], "lr": 2e-3},
                {"params": self.decays + self.thresholds, "lr": 2e-2, "weight_decay": 0.0},
            ]
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)
        self.best = float("inf")

    def data(self, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(self.classes, (self.batch_size,), generator=g)
        rate = (y.float() + 1) / (4 * self.classes)
        x = torch.rand(
            self.time_steps, self.batch_size, 2, self.size, self.size, generator=g
        ) < rate.view(1, -1, 1, 1, 1)
        return x.to(self.device), y.to(self.device)

    def simulate(self, events):
        voltage = [None] * len(self.weights)
        spikes = torch.zeros((), device=self.device)
        logits = 0.0
        trace = []
        for t in range(events.shape[0]):
            x = events[t].float()
            for k, w in enumerate(self.weights):
                current = F.conv2d(x, w, padding=1)
                if k % 2 == 1:
                    current = F.avg_pool2d(current, 2)
                v = voltage[k]
                v = current if v is None else v * torch.sigmoid(self.decays[k]) + current
                s = Spike.apply(v - self.thresholds[k], 10.0)
                voltage[k] = v - s * self.thresholds[k].detach()
                spikes = spikes + s.mean()
                x = s
            logits = logits + x.mean((2, 3)) @ self.readout.t()
            trace.append(logits / (t + 1))
        return trace, spikes / (events.shape[0] * len(self.weights))

    def train_step(self, seed):
        x, y = self.data(seed)
        trace, rate = self.simulate(x)
        # every moment of the last half should already know the answer
        half = trace[len(trace) // 2 :]
        loss = torch.stack([F.cross_entropy(l, y) for l in half]).mean() + 0.1 * (rate - 0.1) ** 2
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.weights, 0.5)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item(), rate.item()

    @torch.no_grad()
    def evaluate(self, seed):
        x, y = self.data(seed)
        trace, _ = self.simulate(x)
        return F.cross_entropy(trace[-1], y).item(), (
            trace[-1].argmax(1) == y
        ).float().mean().item()

    def run(self, steps=12):
        for step in range(steps):
            loss, rate = self.train_step(step)
            print(f"{step:3d} loss {loss:.4f} firing {rate:.3f}", flush=True)
            if step % 4 == 3:
                val, acc = self.evaluate(10_000 + step)
                if val < self.best:
                    self.best = val
                print(f"    val {val:.4f} accuracy {acc:.3f}", flush=True)


if __name__ == "__main__":
    Trainer().run()
