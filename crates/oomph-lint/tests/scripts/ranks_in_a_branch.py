import torch
from torch.nn.parallel import DistributedDataParallel


def main(args, model):
    torch.distributed.init_process_group("nccl")
    if not args.distributed:
        model = model.cuda()
    else:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model
