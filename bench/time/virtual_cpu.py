"""What steps take this machine's CPU on a virtual GPU, with nothing recorded: `LD_PRELOAD=… python bench/time/virtual_cpu.py OUT JOB…`.

Preload the library of an installed oomph (`oomph/_vgpu/libcuda.so.1`). One line for each job: `cpu_s`, seconds of the process's CPU for each step,
and `calibration`, the small steps of `oomph calibrate` in the same process, in turn. Kernels do not run and nothing computes values, so
jobs whose values steer what they launch take another way, or fail.
"""

import json
import multiprocessing
import os
import sys
import time
import traceback
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "gpu"), str(HERE.parent / "accuracy" / "jobs"), str(HERE / "jobs")]  # fmt: skip
WARM, STEPS, TURN, SECONDS = 3, 25, 4, 3


def measure(job, pipe):
    """In a process of its own: sets a job up, and times it."""
    import step_time
    import torch

    out = dict(set=job[0], case=job[1])
    try:
        torch.set_num_threads(1)
        torch.backends.cuda.enable_cudnn_sdp(False)  # needs plans of a real cuDNN
        clock = types.SimpleNamespace(perf_counter=time.process_time)
        small = step_time.calibration()
        step_time.time = small.time = clock
        step, _ = step_time.stepper(*job)
        ready, found, took, began = small.prepared(), [], [], time.monotonic()
        for _ in range(WARM):
            step()
        while len(took) < STEPS and (len(took) < 2 * TURN or time.monotonic() < began + SECONDS):
            if len(took) % TURN == 0:
                times = small.measured(1, 2, ready)
                found.append({name: one["steps"] for name, one in times.items()})
                step()
            before = time.process_time()
            step()
            took.append(time.process_time() - before)
        out.update(cpu_s=took, calibration=found)
    except Exception:
        out["error"] = traceback.format_exc()[-600:]
    pipe.send(out)
    os._exit(0)


def main():
    """Measure jobs one after the other."""
    import step_time
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    jobs = {case: (subject, case) for subject, case in step_time.listed()}
    with open(sys.argv[1], "a") as out:
        for case in sys.argv[2:]:
            here, there = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=measure, args=(jobs[case], there))  # fmt: skip
            process.start()
            there.close()
            row = here.recv() if here.poll(120) else dict(case=case, error="out of time")
            process.kill()
            process.join()
            out.write(json.dumps(row) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
