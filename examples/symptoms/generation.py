"""Keys and values of each layer are kept for every token."""

import torch

layers, heads, width = 32, 32, 128
keys, values = [], []
with torch.inference_mode():
    for _ in range(layers):
        keys.append(torch.empty(8, heads, 0, width, device="cuda", dtype=torch.half))
        values.append(torch.empty(8, heads, 0, width, device="cuda", dtype=torch.half))
    query = torch.randn(8, heads, 256, width, device="cuda", dtype=torch.half)
    for _ in range(64):
        for i in range(layers):
            keys[i] = torch.cat([keys[i], query], dim=2)
            values[i] = torch.cat([values[i], query], dim=2)
            torch.nn.functional.scaled_dot_product_attention(query, keys[i], values[i])
