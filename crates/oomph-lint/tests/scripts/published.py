"""Only runs published weights: where they were saved is not known here."""
import torch

from networks import Upscaler

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Upscaler(scale=4)
model.load_state_dict(torch.load("weights/upscaler.pth"), strict=True)
model.eval()
model = model.to(device)
with torch.no_grad():
    print(model(torch.rand(1, 3, 64, 64, device=device)).shape)
