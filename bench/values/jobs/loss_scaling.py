"""fp16 with loss scaling from a scale that is too large: steps are skipped until gradients are finite, so state comes late."""

import torch
import torchvision

torch.manual_seed(5)
model = torchvision.models.resnet18(num_classes=10).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30, backoff_factor=2.0**-4)
generator = torch.Generator().manual_seed(6)
for _ in range(6):
    x = torch.randn(16, 3, 128, 128, generator=generator).cuda()
    y = torch.randint(10, (16,), generator=generator).cuda()
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(
        "scale",
        scaler.get_scale(),
        "states",
        len(optimizer.state),
        "allocated",
        torch.cuda.max_memory_allocated(),
    )
