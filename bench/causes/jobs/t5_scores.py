"""T5's encoder, which always multiplies out its attention."""
import torch
from transformers import T5Config, T5EncoderModel


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = T5Config(vocab_size=8000, d_model=256, d_kv=32, d_ff=512, num_layers=6, num_heads=8, attn_implementation="eager")
        self.encoder = T5EncoderModel(config)
        self.head = torch.nn.Linear(256, 4)

    def forward(self, ids):
        return self.head(self.encoder(input_ids=ids).last_hidden_state.mean(1))


model = Classifier().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    ids = torch.randint(0, 8000, (8, 1400), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(ids), torch.randint(0, 4, (8,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
