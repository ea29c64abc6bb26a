"""Inverse lithography: reticles whose printed image matches a layout, Abbe's sum over source points, LBFGS with a strong Wolfe search."""

import torch

device = "cuda"
TILES, SIZE, PIXEL = 6, 1024, 8.0  # pixels of 8 nm
WAVE, APERTURE = 193.0, 1.35
DOSES = (0.98, 1.02)


def source_points(rings=((0.65, 10), (0.85, 14))):
    """An annular source: partial coherence factors and their weights."""
    points = []
    for sigma, count in rings:
        angle = torch.arange(count, device=device) * (2 * torch.pi / count)
        points.append(sigma * torch.stack([angle.cos(), angle.sin()], 1))
    return torch.cat(points)


def pupils(points, defocus):
    """The shifted pupil of each source point, with the phase of a defocused lens, over the spectrum."""
    f = torch.fft.fftfreq(SIZE, PIXEL, device=device) * WAVE / APERTURE
    fx = f[None, None, :] + points[:, 0, None, None]
    fy = f[None, :, None] + points[:, 1, None, None]
    rho = fx**2 + fy**2
    inside = (rho <= 1).float()
    height = torch.sqrt((1.44**2 - (APERTURE**2) * rho).clamp(min=0))
    phase = 2 * torch.pi / WAVE * defocus * height
    return torch.polar(inside, phase * inside)


def layout():
    """Rectangles: lines with gaps, and contacts."""
    g = torch.Generator().manual_seed(2)
    tiles = torch.zeros(TILES, SIZE, SIZE)
    for tile in tiles:
        for _ in range(60):
            y, x = torch.randint(64, SIZE - 224, (2,), generator=g).tolist()
            h, w = torch.randint(10, 20, (2,), generator=g).tolist()
            if torch.rand((), generator=g) < 0.7:
                h = h * 8
            tile[y : y + h, x : x + w] = 1
    return tiles.to(device)


class Printer:
    def __init__(self, defocus=(0.0, 40.0)):
        points = source_points()
        self.lenses = [pupils(points, d) for d in defocus]
        centre = torch.stack([lens[:, 0, 0] for lens in self.lenses])
        self.open_field = (centre.real**2 + centre.imag**2).mean()

    def aerial(self, mask, lens):
        spectrum = torch.fft.fft2(mask)
        image = 0
        for some in lens.split(8):
            field = torch.fft.ifft2(spectrum[:, None] * some)
            image = image + (field.real**2 + field.imag**2).sum(1)
        return image / len(lens) / self.open_field

    def __call__(self, mask):
        prints = []
        for lens in self.lenses:
            image = self.aerial(mask, lens)
            prints += [torch.sigmoid(50 * (dose * image - 0.225)) for dose in DOSES]
        return prints


def roughness(mask):
    return (mask[:, 1:] - mask[:, :-1]).abs().mean() + (mask[..., 1:] - mask[..., :-1]).abs().mean()


def main():
    target = layout()
    printer = Printer()
    theta = (4 * target - 2).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta], lr=1.0, max_iter=3, max_eval=8, history_size=8, line_search_fn="strong_wolfe"
    )
    evaluations = 0

    def closure():
        nonlocal evaluations
        optimizer.zero_grad()
        mask = torch.sigmoid(theta)
        prints = printer(mask)
        fit = sum(((p - target) ** 2).sum((1, 2)).mean() for p in prints)
        band = ((prints[0] - prints[-1]) ** 2).sum((1, 2)).mean()
        loss = (fit + 2 * band) * 1e-3 + 10 * roughness(mask)
        loss.backward()
        evaluations += 1
        return loss

    for step in range(5):
        loss = optimizer.step(closure)
        print(f"step {step} loss {loss.item():.5f} after {evaluations} evaluations")
    with torch.no_grad():
        hard = (theta > 0).float()
        error = ((printer(hard)[0] > 0.5) != (target > 0.5)).float().mean()
    print(f"wrong pixels {100 * error.item():.3f} %")


if __name__ == "__main__":
    main()
