"""T5 with a multilingual vocabulary: the loss makes copies of its logits."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(vocab_size=250112, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4, pad_token_id=0, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    source = torch.randint(0, 250000, (16, 64), device="cuda")
    target = torch.randint(0, 250000, (16, 128), device="cuda")
    loss = model(input_ids=source, labels=target).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
