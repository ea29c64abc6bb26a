# %% [markdown]
# A U-Net on synthetic masks

# %%
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


# %%
def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, n_class=2, w=32):
        super().__init__()
        self.d1, self.d2, self.d3 = (
            double_conv(3, w),
            double_conv(w, 2 * w),
            double_conv(2 * w, 4 * w),
        )
        self.pool = nn.MaxPool2d(2)
        self.u2, self.u1 = double_conv(6 * w, 2 * w), double_conv(3 * w, w)
        self.last = nn.Conv2d(w, n_class, 1)

    def forward(self, x):
        c1 = self.d1(x)
        c2 = self.d2(self.pool(c1))
        x = self.d3(self.pool(c2))
        x = F.interpolate(x, scale_factor=2)
        x = self.u2(torch.cat([x, c2], 1))
        x = F.interpolate(x, scale_factor=2)
        x = self.u1(torch.cat([x, c1], 1))
        return self.last(x)


# %%
images = torch.randn(48, 3, 128, 128)
masks = torch.randint(0, 2, (48, 128, 128))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, masks), batch_size=16)
model = UNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# %%
for epoch in range(3):
    for img, mask in loader:
        img, mask = img.to(device), mask.to(device)
        pred = model(img)
        loss = F.cross_entropy(pred, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
