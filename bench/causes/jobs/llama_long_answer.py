"""One Llama answers with a long text for many users."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def serve(model, users, length, new):
    ids = torch.randint(0, 2000, (users, length), device="cuda")
    return model.generate(ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)


model = LlamaForCausalLM(
    LlamaConfig(vocab_size=2000, hidden_size=1024, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=16)
).cuda().bfloat16().eval()
with torch.no_grad():
    serve(model, users=128, length=600, new=60)
