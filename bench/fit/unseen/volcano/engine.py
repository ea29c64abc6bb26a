import torch


def train_one_epoch(model, criterion, optimizer, scheduler, loader, device):
    model.train()
    running = torch.zeros((), device=device)
    n = 0
    for batch in loader:
        frame = batch["frame"].to(device, memory_format=torch.channels_last, non_blocking=True)
        target = batch["maps"].to(device, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            maps = model(frame)
        loss = criterion(maps, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.detach()
        n += 1
    return (running / n).item()


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    errors = []
    for batch in loader:
        maps = model(batch["frame"].to(device))[-1]
        flat = maps.flatten(2).argmax(-1)
        side = maps.shape[-1]
        found = torch.stack([flat % side, flat // side], -1).float()
        errors.append((found - batch["points"].to(device)).norm(dim=-1).mean())
    return torch.stack(errors).mean().item()
