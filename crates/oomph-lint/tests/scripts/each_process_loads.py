import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nets import Net


def main(rank, loader):
    dist.init_process_group("nccl")
    net = Net().cuda(rank)
    net.load_state_dict(torch.load("last.pt"))  # OOM501
    net = DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        net(x.cuda(rank), y.cuda(rank)).backward()
        optimizer.step()
    torch.save(net.module.state_dict(), "last.pt")


if __name__ == "__main__":
    main(0, [])
