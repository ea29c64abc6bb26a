"""Obituaries shortened by ProphetNet (two words ahead at once, n-gram attention): own loop in fp32, batches by length, label smoothing, a rate that falls with the root of steps."""

import torch
from transformers import ProphetNetConfig, ProphetNetForConditionalGeneration

torch.manual_seed(3)
cfg = ProphetNetConfig(
    vocab_size=16_000,
    hidden_size=512,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
    num_encoder_layers=6,
    num_decoder_layers=6,
    num_encoder_attention_heads=8,
    num_decoder_attention_heads=8,
    ngram=2,
    eps=0.1,
    use_cache=False,
)
model = ProphetNetForConditionalGeneration(cfg).cuda().train()
opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.999))
rate = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 3e-4 / max(s + 1, 4) ** 0.5)


def obituary():
    n = int(torch.randint(180, 420, ()))
    return torch.randint(5, cfg.vocab_size, (n,)), torch.randint(5, cfg.vocab_size, (n // 5,))


pool = sorted((obituary() for _ in range(72)), key=lambda pair: len(pair[0]))
chunks = [pool[i : i + 12] for i in range(0, len(pool), 12)]
pad = torch.nn.utils.rnn.pad_sequence

for chunk in chunks[1:]:
    text = pad([t for t, _ in chunk], batch_first=True).cuda()
    short = pad([s for _, s in chunk], batch_first=True, padding_value=-100).cuda()
    out = model(input_ids=text, attention_mask=text.ne(0).long(), labels=short)
    (out.loss / short.ne(-100).sum()).backward()
    opt.step()
    rate.step()
    opt.zero_grad(set_to_none=True)
    print(f"{text.shape[1]:4d} words in, {short.shape[1]:3d} out: {out.loss.item():.1f}")
