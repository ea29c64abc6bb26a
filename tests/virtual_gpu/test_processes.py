"""All processes of a run share one virtual card."""

import json
import os
import re
import signal
import subprocess
import textwrap
import xml.etree.ElementTree as ET

import pytest

from tests.support.command import OOMPH, command

CHILD = """
import sys, torch
gib = float(sys.argv[1])
x = torch.empty(int(gib * (1 << 30)), dtype=torch.uint8, device="cuda")
print("child holds", torch.cuda.memory_allocated() >> 30, flush=True)
"""

PARENT = """
import os, signal, subprocess, sys, torch
def child(gib, *more):
    return subprocess.run([sys.executable, "child.py", str(gib), *more]).returncode
def used():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / (1 << 30)
"""


def run(oomph, tmp_path, code, *options, **more):
    (tmp_path / "child.py").write_text(CHILD)
    return oomph(PARENT + textwrap.dedent(code), "--no-measure", *options, **more)


def test_a_child_runs_out_and_the_parent_hides_it(oomph, tmp_path):
    done = run(oomph, tmp_path, """
        x = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        print("child ended with", child(8))
    """)  # fmt: skip
    assert "child ended with 1" in done.out
    assert "torch.OutOfMemoryError" in done.err
    others = (
        r"Process \d+ has 8\.\d+ GiB memory in use\. Including non-PyTorch memory, this process has"
    )
    assert re.search(others, done.err)
    assert done.status == 3 and done.json["verdict"] == "out_of_memory"
    parent, other = done.json["processes"]
    assert (parent["out_of_memory"], other["out_of_memory"]) == (False, True)
    assert parent["recorded"] and other["recorded"]
    assert parent["held_bytes"] == parent["peak_bytes"] > 8 << 30
    oom = done.json["oom"]
    assert oom["process"] == other["process"] and oom["location"].endswith("child.py:4")
    assert f"out of memory in process {other['process']}" in done.out


def test_the_peak_is_the_sum_at_one_time_and_dies_with_its_process(oomph, tmp_path):
    done = run(oomph, tmp_path, """
        x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        before = used()
        for _ in range(2):
            assert child(5) == 0
        assert used() == before, (used(), before)
        big = torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
    """)  # fmt: skip
    assert done.status == 0, done.err
    # Three processes: 2 GiB and once more 9 GiB in the first are more than 2 and 5.
    assert done.json["verdict"] == "fits" and len(done.json["processes"]) == 3
    assert 11 << 30 < done.json["peak"]["used_bytes"] < 11.3 * (1 << 30)
    assert [p["held_bytes"] >> 30 for p in done.json["processes"]] == [11, 0, 0]
    assert [p["peak_bytes"] >> 30 for p in done.json["processes"]] == [11, 5, 5]


def test_memory_of_a_killed_child_comes_back(oomph, tmp_path):
    done = run(oomph, tmp_path, """
        code = "import torch; x = torch.empty(8 << 30, dtype=torch.uint8, device='cuda'); print('up', flush=True); input()"
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"up\\n"
        assert 8 < used() < 8.3, used()
        try:
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
            raise SystemExit("no room was found out")
        except torch.OutOfMemoryError:
            pass
        other.send_signal(signal.SIGKILL); other.wait()
        x = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        print("came back")
        (x[:4] + 1).sum()
    """)  # fmt: skip
    assert "came back" in done.out, done.err
    # The child used the GPU first and left no record: it is counted all the same.
    assert [p["recorded"] for p in done.json["processes"]] == [False, True]
    assert any(found["kind"] == "processes" for found in done.json["assumptions"])
    assert 8 << 30 < done.json["peak"]["used_bytes"] < 8.4 * (1 << 30)


def test_spawned_workers_share_the_card_and_pass_tensors(oomph, tmp_path):
    done = oomph(
        """
        import torch, torch.multiprocessing as mp
        def work(rank, inbox, outbox, done):
            x = inbox.get()
            y = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            outbox.put(x.tolist()); done.wait(60)
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
            big = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
            x = torch.arange(5, device="cuda")
            workers = mp.spawn(work, (inbox, outbox, done), nprocs=2, join=False)
            for _ in range(2):
                inbox.put(x)
            values = [outbox.get(timeout=60) for _ in range(2)]
            assert values == [[0, 1, 2, 3, 4]] * 2, values
            free, total = torch.cuda.mem_get_info()
            print("used", (total - free) / (1 << 30))
            done.set()
            while not workers.join():
                pass
        """,
        "--no-measure",
    )
    assert done.status == 0, done.err
    used = float(done.out.split("used ")[1].split()[0])
    # Memory that was passed on is counted once.
    assert 6.25 < used < 6.7, used
    assert done.json["verdict"] == "fits" and len(done.json["processes"]) == 3
    assert abs(done.json["peak"]["used_bytes"] / (1 << 30) - used) < 0.01


def test_forked_workers_run_out_though_the_script_never_used_the_gpu(oomph):
    done = oomph(
        """
        import multiprocessing, torch
        def work(ready, go):
            x = torch.empty(7 << 30, dtype=torch.uint8, device="cuda")
            ready.set(); go.wait(60)
        context = multiprocessing.get_context("fork")
        ready, go = context.Event(), context.Event()
        first = context.Process(target=work, args=(ready, go)); first.start(); ready.wait(60)
        second = context.Process(target=work, args=(ready, go)); second.start(); second.join()
        go.set(); first.join()
        print("codes", first.exitcode, second.exitcode)
        """,
        "--no-measure",
    )
    assert "codes 0 1" in done.out, done.err
    assert done.status == 3 and done.json["verdict"] == "out_of_memory"
    assert [p["out_of_memory"] for p in done.json["processes"]] == [False, True]
    assert "used no GPU memory" not in done.out


def test_a_data_loader_worker_that_uses_the_gpu_counts(oomph):
    done = oomph(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i):
                x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
                return i
        if __name__ == "__main__":
            for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="spawn"):
                pass
        """
    )
    assert done.status == 0, done.err
    assert done.json["verdict"] == "fits" and done.json["peak"]["used_bytes"] > 1 << 30
    [worker] = done.json["processes"]
    assert worker["recorded"] and worker["command"] == "multiprocessing.spawn"
    assert "used no GPU memory" not in done.out


def test_a_child_without_a_recorder_decides_too(oomph, tmp_path):
    """`-S` and no environment of oomph's but the virtual GPU."""
    code = "import ctypes, sys; c = ctypes.CDLL(None); p = ctypes.c_void_p(); sys.exit(c.cudaMalloc(ctypes.byref(p), ctypes.c_size_t({} << 30)))"
    for gib, verdict in ((5, "fits"), (12, "out_of_memory")):
        done = oomph(
            f"""
            import subprocess, sys, torch
            print("rc", subprocess.run([sys.executable, "-I", "-S", "-c", {code.format(gib)!r}]).returncode)
            """,
            "--no-measure",
        )
        assert f"rc {0 if verdict == 'fits' else 2}" in done.out
        assert done.json["verdict"] == verdict, done.err
        assert "used no GPU memory" not in done.out
        if verdict == "fits":
            assert done.json["peak"]["used_bytes"] > 5 << 30
            assert "not recorded" in done.out


def test_a_script_that_becomes_another_program_has_no_verdict(tmp_path):
    """Its memory is known, its history is gone."""
    (tmp_path / "script.py").write_text(
        "import os, torch\nx = torch.zeros(1 << 28, device='cuda')\nos.execvp('true', ['true'])\n"
    )
    done = command(tmp_path, "run", "--gpu", "rtx-3060", "script.py")
    assert done.returncode == 4 and "✓" not in done.stdout, done.stdout
    assert "ran without oomph's recorder and used 1.1 GiB of GPU memory" in done.stderr


def test_two_ranks_on_one_gpu(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.empty(4 << 30, dtype=torch.uint8, device='cuda'); dist.barrier()\n"
        "free, total = torch.cuda.mem_get_info(); print(f'used {(total - free) >> 30}', flush=True); dist.barrier()\n"
    )
    words = ["run", "--gpu", "rtx-3060", "--json", "r.json", "--out", "run"]
    done = command(
        tmp_path, *words, "--", "torchrun", "--standalone", "--nproc-per-node", 2, script
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("used 8") == 2
    result = json.loads((tmp_path / "r.json").read_text())
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert len(result["processes"]) == 2 and 8 << 30 < result["peak"]["used_bytes"] < 9 << 30


def test_nvml_agrees_with_cuda(oomph, tmp_path):
    done = run(oomph, tmp_path, """
        import ctypes
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
        def look():
            assert nvml.nvmlInit_v2() == 0
            handle, memory = ctypes.c_void_p(), Memory()
            assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
            assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
            count, found = ctypes.c_uint(8), (Process * 8)()
            assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found) == 0
            return memory, [(p.pid, p.used) for p in found[:count.value]]
        assert look()[0].used == 0 and look()[1] == []
        pid = os.fork()  # who only looked may still fork
        if pid == 0:
            x = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            memory, processes = look()
            assert memory.free == torch.cuda.mem_get_info()[0] and memory.used >> 30 == 3
            assert processes == [(os.getpid(), memory.used)], processes
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert look()[0].used == 0
        rates = (ctypes.c_uint * 2)()
        assert nvml.nvmlDeviceGetUtilizationRates(ctypes.c_void_p(1), rates) == 0
        print("agrees")
    """)  # fmt: skip
    assert "agrees" in done.out, done.err
    assert done.json["peak"]["used_bytes"] > 3 << 30


def test_fit_refuses_by_name(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "script.py").write_text(PARENT + "\nx = torch.empty(1, device='cuda'); child(1)\n")
    done = command(tmp_path, "fit", "--gpu", "rtx-3060", "script.py")
    assert done.returncode == 2 and "✓" not in done.stdout
    assert "in more than one process" in done.stderr and "child.py" in done.stderr


@pytest.mark.usefixtures("started")
def test_nothing_is_left_in_shared_memory_after_a_kill(tmp_path):
    (tmp_path / "child.py").write_text(CHILD + "\nimport time; time.sleep(60)\n")
    (tmp_path / "script.py").write_text(PARENT + "\nchild(1)\n")
    places = ("/dev/shm", "/tmp")

    def children(process):
        with open(f"/proc/{process}/task/{process}/children") as file:
            return file.read().split()

    def rooms(process):
        return [n for p in places for n in os.listdir(p) if n.startswith(f"oomph-{process}-")]

    with subprocess.Popen(
        [OOMPH, "run", "--gpu", "rtx-3060", "script.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout.readline() == "child holds 1\n"
        [room] = rooms(running.pid)
        room = next(os.path.join(p, room) for p in places if os.path.isdir(os.path.join(p, room)))
        modes = {os.stat(room).st_mode & 0o777, os.stat(os.path.join(room, "card")).st_mode & 0o777}
        assert modes == {0o700, 0o600}
        [script] = children(running.pid)
        os.kill(int(children(script)[0]), signal.SIGKILL)
        running.stdout.read()
    assert not rooms(running.pid)


def test_nvidia_smi_shows_what_the_script_holds(oomph, tmp_path):
    run = oomph("""
    import os, subprocess, torch
    x = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    def smi(*words):
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True)
        print(f"{done.returncode}|{done.stdout.strip()}")
    smi("--query-gpu=name,memory.used,gpu_serial", "--format=csv,noheader,nounits")
    smi("--query-gpu=memory.free", "--format=csv,noheader")
    smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    smi("-i", "4", "-L")
    smi("--query-gpu=color", "--format=csv")
    smi("-L")
    print(f"{torch.cuda.mem_get_info()[0] >> 20} {os.getpid()}")
    for name, words in [("all", ["-q"]), ("memory", ["-q", "-d", "MEMORY,PIDS"]), ("xml", ["-q", "-x"]), ("table", [])]:
        smi(*words, "-f", name)
    smi("--query-gpu=compute_cap,clocks.max.sm,pci.bus_id,mig.mode.current,pstate", "--format=csv")
    smi("-q", "-d", "COLOR")
    # The library is a file, for what has lost LD_PRELOAD, and for what looks for it before it opens it.
    del os.environ["LD_PRELOAD"]
    smi("-L")
    where = os.environ["LD_LIBRARY_PATH"].split(":")[0]
    print(sorted(os.listdir(where)))
    """)
    assert run.status == 0, run.err
    used, free, holder, no_gpu, no_field, listed, own = run.out.splitlines()[:7]
    head, row, no_section, unloaded, files = [
        line for line in run.out.splitlines()[7:] if line != "0|"
    ][:5]
    assert head == "0|compute_cap, clocks.max.sm [MHz], pci.bus_id, mig.mode.current, pstate"
    assert row == "8.6, 1777 MHz, 00000000:01:00.0, [N/A], P0"
    assert no_section.startswith("2|") and "no section COLOR" in no_section
    assert unloaded == listed and files == "['libnvidia-ml.so', 'libnvidia-ml.so.1']"
    whole, memory, table = ((tmp_path / name).read_text() for name in ("all", "memory", "table"))
    log = ET.parse(tmp_path / "xml").getroot()
    total = int(log.find("gpu/fb_memory_usage/total").text.split()[0])
    assert (
        f"        Total                                     : {total} MiB" in whole
        and "FB Memory Usage" in memory
    )
    assert "Product Name" in whole and "Product Name" not in memory
    pid = own.split()[1]
    assert log.find("gpu/processes/process_info/pid").text == pid and f"Process ID {pid}" in memory
    assert log.find("attached_gpus").text == "1" and log.find("gpu/uuid").text in listed
    assert (
        f"MiB / {total:>6}MiB" in table
        and "CUDA Version: " in table
        and pid in table.split("Processes:")[1]
    )
    assert len({len(line) for line in table.splitlines()[1:] if line}) == 1
    name, used, serial = used.removeprefix("0|").split(", ")
    assert name == "NVIDIA GeForce RTX 3060" and serial == "[N/A]" and 3072 < int(used) < 3600
    assert abs(int(free.removeprefix("0|").split()[0]) - int(own.split()[0])) <= 1
    assert holder.startswith(f"0|{own.split()[1]}, 3")
    assert no_gpu.startswith("6|") and no_field.startswith('2|Field "color" is not')
    assert listed.startswith("0|GPU 0: NVIDIA GeForce RTX 3060 (UUID: GPU-")


@pytest.mark.parametrize("value", ["", "3"])
def test_what_hides_the_machines_gpus_hides_no_virtual_ones(oomph, value):
    """Login nodes and shared servers set it; what the script sets itself counts: `test_devices_that_are_hidden_are_not_there`."""
    code = """
    import os
    print(os.environ.get("CUDA_VISIBLE_DEVICES"))
    import torch
    print(torch.cuda.device_count(), torch.zeros(1, device="cuda").device)
    """
    run = oomph(code, "-q", "--no-measure", env={"CUDA_VISIBLE_DEVICES": value})
    assert run.status == 0 and run.out.splitlines()[:2] == ["None", "1 cuda:0"], run.out + run.err
