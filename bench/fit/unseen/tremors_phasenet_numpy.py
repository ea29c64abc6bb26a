"""Arrivals of P and S waves in seismograms: PhaseNet (a 1-D U-Net). numpy makes the batches.

Traces are noise with a wavelet at P, another at S, random gains, sometimes a gap; then they are
tapered and normalized, all on the CPU between two steps. fp32, SGD with momentum.
"""

import os
import random

import numpy as np
import torch
import torch.nn as nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
RATE, SAMPLES, BATCH = 100, 6000, 112

rng = np.random.default_rng(5)
NOISE = rng.standard_normal(2_000_000).astype(np.float32)  # long recording of a quiet day
COLOURED = np.convolve(NOISE, np.hanning(9).astype(np.float32), mode="same")
TAPER = np.ones(SAMPLES, np.float32)
TAPER[:200] = np.hanning(400)[:200]
TAPER[-200:] = np.hanning(400)[200:]


def wavelet(frequency, decay):
    t = np.arange(800, dtype=np.float32) / RATE
    return np.sin(2 * np.pi * frequency * t) * np.exp(-t * decay) * np.minimum(t * 10, 1)


def bump(centre, width=20):
    t = np.arange(SAMPLES, dtype=np.float32)
    return np.exp(-((t - centre) ** 2) / (2 * width**2))


def make_batch(n):
    traces = np.empty((n, 3, SAMPLES), np.float32)
    target = np.zeros((n, 3, SAMPLES), np.float32)
    for i in range(n):
        for c in range(3):
            at = random.randrange(len(COLOURED) - SAMPLES)
            traces[i, c] = COLOURED[at : at + SAMPLES]
        if random.random() < 0.9:
            p = random.randint(300, 3500)
            s = p + random.randint(100, 1600)
            strength = 10 ** random.uniform(0, 1.5)
            first = wavelet(random.uniform(4, 12), random.uniform(1, 3)) * strength
            second = wavelet(random.uniform(2, 6), random.uniform(0.5, 2)) * strength * 1.7
            traces[i, 0, p : p + 800] += first
            traces[i, 1:, s : s + 800] += second * rng.uniform(0.5, 1.0, (2, 1)).astype(np.float32)
            target[i, 1], target[i, 2] = bump(p), bump(s)
        if random.random() < 0.1:
            gap = random.randint(0, SAMPLES - 500)
            traces[i, :, gap : gap + random.randint(50, 500)] = 0
    target[:, 0] = np.clip(1 - target[:, 1] - target[:, 2], 0, 1)
    target /= target.sum(1, keepdims=True)
    traces -= traces.mean(-1, keepdims=True)
    traces /= traces.std(-1, keepdims=True) + 1e-6
    return torch.from_numpy(traces * TAPER), torch.from_numpy(target)


class Double(nn.Sequential):
    def __init__(self, i, o, k=7):
        super().__init__(
            nn.Conv1d(i, o, k, padding=k // 2, bias=False),
            nn.BatchNorm1d(o),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv1d(o, o, k, padding=k // 2, bias=False),
            nn.BatchNorm1d(o),
            nn.ReLU(),
        )


class PhaseNet(nn.Module):
    def __init__(self, base=96, depth=5, step=4):
        super().__init__()
        widths = [base * min(2**d, 8) for d in range(depth)]
        self.first = Double(3, widths[0])
        self.pools = nn.ModuleList(nn.Conv1d(w, w, 7, step, 3) for w in widths[:-1])
        self.downs = nn.ModuleList(Double(a, b) for a, b in zip(widths, widths[1:]))
        self.rises = nn.ModuleList(
            nn.ConvTranspose1d(b, a, step, step) for a, b in zip(widths, widths[1:])
        )
        self.ups = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv1d(widths[0], 3, 1)

    def forward(self, x):
        x, kept = self.first(x), []
        for pool, down in zip(self.pools, self.downs):
            kept.append(x)
            x = down(pool(x))
        for rise, up in zip(reversed(self.rises), reversed(self.ups)):
            skip = kept.pop()
            x = rise(x)[..., : skip.shape[-1]]
            x = nn.functional.pad(x, (0, skip.shape[-1] - x.shape[-1]))
            x = up(torch.cat([skip, x], 1))
        return self.head(x)


def main():
    random.seed(0)
    torch.manual_seed(0)
    model = PhaseNet().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=500, gamma=0.5)
    running = None
    for step in range(STEPS):
        x, y = make_batch(BATCH)
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        print("step %d loss %.4f running %.4f" % (step, loss.item(), running))
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                x, y = make_batch(16)
                picks = model(x.cuda()).softmax(1)[:, 1].argmax(-1).cpu().numpy()
            off = np.abs(picks - y[:, 1].argmax(-1).numpy()) / RATE
            print("  P off by %.2f s in the middle" % float(np.median(off)))
            model.train()


if __name__ == "__main__":
    main()
