"""Runs a job and prints the peaks of PyTorch's allocator as its last line."""

import runpy
import sys

import torch

runpy.run_path(sys.argv[1], run_name="__main__")
peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
print("peaks", *peaks, torch.__version__, torch.cuda.get_device_name().replace(" ", "_"))
