import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda().half()
tokenizer = AutoTokenizer.from_pretrained("gpt2")
results = []
for prompt in ["a", "b"]:
    ids = tokenizer(prompt, return_tensors="pt").input_ids.cuda()
    out = model(ids)  # OOM205
    results.append(out)  # OOM103
print(torch.stack([each.logits for each in results]).shape)
