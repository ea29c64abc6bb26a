"""The cells of a notebook: one freezes what the others evaluate."""
import torch

device = torch.device("cuda")
model = torch.nn.Linear(8, 2).to(device)

for param in model.parameters():
    param.requires_grad = False

model.eval()

loader = torch.utils.data.DataLoader([])
for x in loader:
    pred = model(x.to(device))
    print(pred.detach().cpu())
