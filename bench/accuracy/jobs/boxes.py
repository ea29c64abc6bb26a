"""torchvision's detectors: how many boxes survive depends on values.

`python boxes.py NAME` as in training.py.
"""

from training import main


def retinanet():
    def build():
        import torch, torchvision

        m = (
            torchvision.models.detection.retinanet_resnet50_fpn(
                weights=None, weights_backbone=None, num_classes=20
            )
            .cuda()
            .train()
        )

        def batch():
            g = torch.Generator().manual_seed(0)
            images, targets = [], []
            for _ in range(2):
                images.append(torch.randn(3, 480, 640, device="cuda"))
                xy = torch.rand(8, 2, generator=g) * 200
                wh = torch.rand(8, 2, generator=g) * 200 + 16
                targets.append(
                    dict(
                        boxes=torch.cat([xy, xy + wh], 1).cuda(),
                        labels=torch.randint(1, 20, (8,), generator=g).cuda(),
                    )
                )
            return images, targets

        return m, batch, lambda b: sum(m(*b).values())

    return dict(build=build, opt="sgd", amp=None)


def detection(name, **kw):
    def build():
        import torch, torchvision

        m = (
            getattr(torchvision.models.detection, name)(
                weights=None, weights_backbone=None, num_classes=12, **kw
            )
            .cuda()
            .train()
        )

        def batch():
            boxes = lambda: torch.tensor(
                [[20.0, 30.0, 180.0, 200.0], [60.0, 60.0, 300.0, 260.0], [5.0, 5.0, 90.0, 120.0]],
                device="cuda",
            )
            t = [
                dict(
                    boxes=boxes(),
                    labels=torch.tensor([1, 5, 7], device="cuda"),
                    masks=torch.ones(3, 320, 320, dtype=torch.uint8, device="cuda"),
                )
                for _ in range(4)
            ]
            return [torch.rand(3, 320, 320, device="cuda") for _ in range(4)], t

        return m, batch, lambda b: sum(m(*b).values())

    return dict(build=build, opt="sgd", amp=None)


JOBS = {
    "tv_retinanet_b2": retinanet,
    "fasterrcnn_b4": lambda: detection("fasterrcnn_mobilenet_v3_large_fpn"),
    "maskrcnn_b4": lambda: detection("maskrcnn_resnet50_fpn"),
}

if __name__ == "__main__":
    main(JOBS)
