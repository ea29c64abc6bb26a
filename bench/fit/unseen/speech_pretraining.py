"""Self-supervised speech: convolutions, masked transformer, quantized targets (as wav2vec 2.0)."""

import torch
from torch import nn
from torch.nn import functional as F


class FeatureEncoder(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        spec = [(dim, 10, 5)] + [(dim, 3, 2)] * 4 + [(dim, 2, 2)] * 2
        cin, layers = 1, []
        for i, (cout, k, s) in enumerate(spec):
            layers.append(nn.Conv1d(cin, cout, k, s, bias=False))
            if i == 0:
                layers.append(nn.GroupNorm(cout, cout))
            layers.append(nn.GELU())
            cin = cout
        self.net = nn.Sequential(*layers)

    def forward(self, wav):
        return self.net(wav.unsqueeze(1)).transpose(1, 2)


class GumbelQuantizer(nn.Module):
    def __init__(self, dim=512, groups=2, entries=320, out=256):
        super().__init__()
        self.groups, self.entries = groups, entries
        self.logits = nn.Linear(dim, groups * entries)
        self.codes = nn.Parameter(torch.rand(groups, entries, out // groups))

    def forward(self, z, tau=2.0):
        b, t, _ = z.shape
        logits = self.logits(z).view(b, t, self.groups, self.entries)
        hard = F.gumbel_softmax(logits.float(), tau=tau, hard=True, dim=-1)
        probs = logits.float().softmax(-1).mean((0, 1))
        perplexity = torch.exp(-(probs * torch.log(probs + 1e-7)).sum(-1)).sum()
        q = torch.einsum("btge,ged->btgd", hard, self.codes).flatten(2)
        return q, perplexity


class Pretrainer(nn.Module):
    def __init__(self, width=512, layers=8, negatives=50):
        super().__init__()
        self.encoder, self.quantizer = FeatureEncoder(), GumbelQuantizer()
        self.norm = nn.LayerNorm(512)
        self.project = nn.Linear(512, width)
        self.mask_emb = nn.Parameter(torch.rand(width))
        conv = nn.Conv1d(width, width, 128, padding=64, groups=16)
        self.pos = nn.utils.parametrizations.weight_norm(conv, dim=2)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, 0.1, "gelu", batch_first=True)
        self.context = nn.TransformerEncoder(layer, layers)
        self.final = nn.Linear(width, 256)
        self.negatives = negatives

    def forward(self, wav, mask):
        z = self.norm(self.encoder(wav))
        q, perplexity = self.quantizer(z)
        x = self.project(z)
        x = torch.where(mask.unsqueeze(-1), self.mask_emb, x)
        x = x + F.gelu(self.pos(x.transpose(1, 2))[..., :-1].transpose(1, 2))
        c = self.final(self.context(x))
        b, t, d = c.shape
        pick = torch.randint(0, t, (b, t, self.negatives), device=c.device)
        neg = q.gather(1, pick.flatten(1).unsqueeze(-1).expand(-1, -1, d))
        cand = torch.cat([q.unsqueeze(2), neg.view(b, t, self.negatives, d)], 2)
        sim = F.cosine_similarity(c.unsqueeze(2), cand, dim=-1) / 0.1
        nll = -F.log_softmax(sim, -1)[..., 0]
        contrast = (nll * mask).sum() / mask.sum()
        return {"loss": contrast + 0.1 * (640 - perplexity) / 640, "perplexity": perplexity}


def span_mask(b, t, p=0.065, span=10):
    starts = torch.rand(b, t) < p
    mask = starts.clone()
    for k in range(1, span):
        mask[:, k:] |= starts[:, :-k]
    return mask


model = Pretrainer().to("cuda")
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-4, total_steps=10)
wav_length = 16000 * 5
frames = model.encoder(torch.zeros(1, wav_length, device="cuda")).shape[1]
for it in range(4):
    wav = torch.randn(6, wav_length).to("cuda")
    mask = span_mask(6, frames).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(wav, mask)
    out["loss"].backward()
    opt.step()
    sched.step()
    opt.zero_grad()
    print(it, out["loss"].item(), out["perplexity"].item())
