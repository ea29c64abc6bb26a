import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    accelerator = Accelerator()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=10000, n_embd=384, n_layer=6, n_head=6, n_positions=256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    data = TensorDataset(torch.randint(0, 10000, (64, 256)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for epoch in range(2):
        for (ids,) in loader:
            optimizer.zero_grad()
            outputs = model(input_ids=ids, labels=ids)
            accelerator.backward(outputs.loss)
            optimizer.step()
    accelerator.print("done")


if __name__ == "__main__":
    main()
