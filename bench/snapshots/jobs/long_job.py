"""A long GPT-2 training with Python stacks. `python long_job.py STEPS OUT.pickle`

On the virtual GPU (LD_PRELOAD of its libcuda.so.1) 3000 steps take two to three minutes and give a
snapshot of 1.07 GB with 12 million events.
"""

import sys

import torch
import transformers

steps, out = int(sys.argv[1]), sys.argv[2]
torch.cuda.memory._record_memory_history(max_entries=sys.maxsize, stacks="python")
with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(steps):
    x = torch.randint(0, 50257, (8, 256), device="cuda")
    model(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot(out)
