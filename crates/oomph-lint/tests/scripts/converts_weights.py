"""Writes weights anew: nothing says that they came from a GPU."""
import torch

from networks import Net

model = Net()
model.load_state_dict(torch.load("weights.pth"))
model.eval()
print(torch.jit.trace(model, torch.rand(1, 3, 8, 8)))
torch.save(model.state_dict(), "converted.pth")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model.to(device)
