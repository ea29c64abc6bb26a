"""Do programs that ask for GPUs through NVML work on a virtual GPU as they are?

    pip install nvidia-ml-py gpustat nvitop GPUtil setuptools
    python bench/testing/device_queries.py bench/testing/results/device_queries.json

Runs each below `oomph run --gpu rtx-4090`, beside a script that holds 1 GiB, and keeps what it prints.
"""

import datetime
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

QUERIES = {
    "pynvml": """
        import os, pynvml, torch
        pynvml.nvmlInit()
        h = pynvml.nvmlDeviceGetHandleByIndex(0)
        m = pynvml.nvmlDeviceGetMemoryInfo(h)
        assert m.total == torch.cuda.get_device_properties(0).total_memory and m.free == torch.cuda.mem_get_info()[0]
        assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)] == [os.getpid()]
        found, unsupported, missing = [], [], []
        for name in sorted(n for n in dir(pynvml) if n.startswith("nvmlDeviceGet")):
            try:
                getattr(pynvml, name)(h)
                found.append(name)
            except TypeError:
                continue
            except pynvml.NVMLError_NotSupported:
                unsupported.append(name)
            except pynvml.NVMLError as error:
                missing.append(f"{name}: {error}")
        print("answered", len(found), "not supported", len(unsupported), "other", missing)
    """,
    "gpustat": 'import runpy, sys; sys.argv = ["gpustat", "-cp"]; runpy.run_module("gpustat", run_name="__main__")',
    "nvitop": 'import runpy, sys; sys.argv = ["nvitop", "-1"]; runpy.run_module("nvitop", run_name="__main__")',
    "GPUtil": "import GPUtil; GPUtil.showUtilization(); print(GPUtil.getAvailable(), vars(GPUtil.getGPUs()[0]))",
    "torch": """
        import torch
        c = torch.cuda
        print(c.utilization(), c.temperature(), c.power_draw(), c.clock_rate(), c.memory_usage(), c.list_gpu_processes(), c.device_count())
    """,
    "lightning": """
        import torch
        import lightning.pytorch as pl
        from lightning.pytorch.accelerators.cuda import CUDAAccelerator, get_nvidia_gpu_stats
        trainer = pl.Trainer(accelerator="auto", devices="auto", logger=False, enable_checkpointing=False)
        print(CUDAAccelerator.is_available(), CUDAAccelerator.auto_device_count(), trainer.strategy.root_device, trainer.num_devices)
        print(len(CUDAAccelerator().get_device_stats(torch.device("cuda", 0))), get_nvidia_gpu_stats(torch.device("cuda", 0)))
    """,
    "transformers and accelerate": """
        from transformers import TrainingArguments
        from accelerate.utils import get_max_memory
        arguments = TrainingArguments("x", report_to=[])
        print(arguments.device, arguments.n_gpu, get_max_memory())
    """,
    "nvidia-smi": 'import subprocess\nfor words in ([], ["-L"], ["-q"]): subprocess.run(["nvidia-smi", *words], check=True)',
}


def main():
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        for name, text in QUERIES.items():
            script = Path(place, "query.py")
            lines = text.splitlines()
            text = "\n".join(line.removeprefix("        ") for line in lines)
            script.write_text(
                "import torch\nheld = torch.zeros(1 << 30, dtype=torch.uint8, device='cuda')\n"
                + text
            )
            done = subprocess.run(
                [sys.executable, "-m", "oomph", "run", "--gpu", "rtx-4090", "-q", str(script)],
                cwd=place, capture_output=True, text=True,
            )  # fmt: skip
            wrong = "Traceback" in done.stderr or "Traceback" in done.stdout
            rows[name] = dict(
                status=done.returncode,
                works=done.returncode == 0 and not wrong,
                out=done.stdout,
                err=done.stderr[-2000:],
            )
            print(name, rows[name]["works"])
    names = (
        "nvidia-ml-py",
        "gpustat",
        "nvitop",
        "GPUtil",
        "torch",
        "lightning",
        "transformers",
        "accelerate",
    )
    versions = {name: importlib.metadata.version(name) for name in names}
    result = dict(
        date=datetime.date.today().isoformat(),
        command=" ".join(sys.argv),
        versions=versions,
        queries=rows,
    )
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
