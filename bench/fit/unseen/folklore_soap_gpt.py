"""Folk tales by a decoder with an own SOAP: Adam in the eigenbasis of Shampoo's preconditioners, QR every second step, bf16 activations."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SOAP(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-3, betas=(0.95, 0.95), shampoo=0.95, eps=1e-8, every=2):
        super().__init__(params, dict(lr=lr, betas=betas, shampoo=shampoo, eps=eps, every=every))

    @staticmethod
    def _project(x, q, back=False):
        for i, basis in enumerate(q):
            if basis is not None:
                m = basis.T if back else basis
                x = m.T @ x if i == 0 else x @ m
        return x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, s = p.grad, self.state[p]
                if not s:
                    s["step"] = 0
                    s["m"], s["v"] = torch.zeros_like(p), torch.zeros_like(p)
                    sizes = p.shape if p.ndim == 2 else ()
                    s["L"] = [g.new_zeros(n, n) if n <= 4096 else None for n in sizes]
                    s["Q"] = [torch.eye(n, device=p.device) if n <= 4096 else None for n in sizes]
                s["step"] += 1
                rotated = self._project(g, s["Q"])
                s["m"].lerp_(g, 1 - b1)
                s["v"].mul_(b2).addcmul_(rotated, rotated, value=1 - b2)
                update = self._project(s["m"], s["Q"]) / (s["v"].sqrt() + group["eps"])
                p.add_(self._project(update, s["Q"], back=True), alpha=-group["lr"])
                for i, cov in enumerate(s["L"]):
                    if cov is None:
                        continue
                    cov.lerp_(g @ g.T if i == 0 else g.T @ g, 1 - group["shampoo"])
                    if s["step"] % group["every"] == 0:
                        s["Q"][i] = torch.linalg.qr(cov @ s["Q"][i])[0]


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.fc, self.proj = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.proj(F.relu(self.fc(self.ln2(x))).square())


class Teller(nn.Module):
    def __init__(self, vocab=16000, d=768, layers=8, heads=6, length=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.layers = nn.Sequential(*[Layer(d, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(d, bias=False)

    def forward(self, idx, target):
        x = self.layers(self.tok(idx) + self.pos.weight[: idx.shape[1]])
        logits = self.ln(x) @ self.tok.weight.T
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


model = Teller().cuda()
optimizer = SOAP(model.parameters())
for i in range(5):
    tales = torch.randint(0, 16000, (8, 513)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tales[:, :-1], tales[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("tale", i, loss.item())
