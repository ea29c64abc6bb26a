"""`oomph fit --gpu NAME:N` and `oomph run --plan` on ranks of the virtual GPU."""

import json
import textwrap

from tests.support.command import command, fit
from tests.support.jobs import TRAIN, WIDE

GIB = 1 << 30
BLOCKS = [f"Net.blocks.{index}" for index in range(6)]


def planned(tmp_path, code, *options, gpu="rtx-3060:2", **shard):
    """`code` under a plan of `shard` alone; the run's JSON."""
    lines = ['format = "oomph.plan/1"', "[[lever]]", 'name = "shard"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in shard.items()]
    (tmp_path / "plan.toml").write_text("\n".join(lines))
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = command(
        tmp_path, "run", "--gpu", gpu, "--plan", "plan.toml", "--steps", "3", "-q", "--no-measure",
        "--json", "run.json", *options, "script.py",
    )  # fmt: skip
    assert (tmp_path / "run.json").exists(), done.stderr
    return done, json.loads((tmp_path / "run.json").read_text())


def test_the_cheapest_way_is_chosen_and_does_what_was_planned(tmp_path):
    """Two ranks of a script that says "cuda:0": planned, run by all ranks, applied again, by hand."""
    code = TRAIN.replace(".cuda()\n    optimizer", '.to("cuda:0")\n    optimizer')
    assert code != TRAIN
    result = fit(tmp_path, code, "--memory", "4.3GiB", "--allow", "shard", gpu="rtx-3060:2")
    assert result.status == 0, result.err
    assert result.json["plain"]["used_bytes"] > 4.3 * GIB
    chosen = result.chosen
    assert result.levers == ["shard"] and chosen["verified"]
    assert chosen["same_results"] == "rounding" and chosen["time_ratio"] < 0.8
    assert any("all 2 ranks ran" in note for note in chosen["notes"])
    assert result.json["smallest"]["gpus"] == 2
    assert {"count": 2, "id": "rtx-3060"}.items() <= next(
        kind for kind in result.json["kinds"] if kind["id"] == "rtx-3060"
    ).items()
    assert "fewest" in result.out and "cheapest" in result.out and "2 GPUs: " in result.out
    assert "gpus = 2" in (tmp_path / "oomph-plan.toml").read_text()
    patch = (tmp_path / "oomph-plan.md").read_text()
    assert "torchrun --nproc-per-node 2" in patch and "DistributedSampler" in patch
    assert '+torch.distributed.init_process_group("' in patch
    # Applied as the report says, it starts the ranks itself. DDP arranges its buckets anew in step 2.
    done = command(
        tmp_path, "run", "--gpu", "rtx-3060:2", "--memory", "4.3GiB", "--plan", "oomph-plan.toml",
        "--steps", "4", "-q", "--json", "run.json", "script.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = json.loads((tmp_path / "run.json").read_text())["ranks"]
    assert [rank["verdict"] for rank in ranks] == ["fits", "fits"]
    most = max(rank["peak"]["used_bytes"] for rank in ranks)
    # A rank that waits for the other may reserve one bucket of 96 MiB less.
    assert abs(most - chosen["peak"]["used_bytes"]) <= 0.03 * most


def test_states_are_divided_and_one_rank_prints(tmp_path):
    """FSDP2 on all blocks: each rank holds half of parameters and optimizer state."""
    code = TRAIN + "        print('step')\n    print(torch.cuda.device_count())\n"
    done, run = planned(tmp_path, code, shards=2, gpus=2, modules=BLOCKS)
    assert run["verdict"] == "fits", run
    assert run["levers"][0]["applied"] == 7
    assert done.stdout.count("step") == 2
    state = 6 * (2 * 1024 * 4096 + 1024 + 4096) * 4 * 2
    for rank in run["ranks"]:
        assert rank["step_count"] == 3
        assert abs(rank["by_category"]["optimizer_state"] - state / 2) < 0.02 * state


def test_groups_of_a_larger_job_are_rehearsed(tmp_path):
    """Rank 15 of 16: shards over eight GPUs of a host, two replicas."""
    _, run = planned(
        tmp_path, TRAIN, "--world-size", "16", "--ranks", "15",
        gpu="rtx-3060:8", gpus=16, shards=8, modules=BLOCKS,
    )  # fmt: skip
    assert run["verdict"] == "fits", run
    state = 6 * (2 * 1024 * 4096 + 1024 + 4096) * 4 * 2
    held = run["ranks"][0]["by_category"]["optimizer_state"]
    assert abs(held - state / 8) < 0.05 * state / 8


def test_batch_normalization_and_data_parallel_are_replaced(tmp_path):
    """SyncBatchNorm in the ranks' place of DataParallel's threads; batches of 10 among 2 and unequal ones."""
    code = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
        model = nn.DataParallel(model, device_ids=[0, 1]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = TensorDataset(torch.randn(33, 3, 8, 8), torch.randint(10, (33,)))
        for x, y in DataLoader(data, batch_size=11, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
    """
    _, run = planned(tmp_path, code, gpus=2)
    assert run["verdict"] == "fits", run
    note = run["levers"][0]["note"]
    assert "DataParallel is replaced" in note and "SyncBatchNorm" in note
    assert "not divisible by 2" in note


def test_ranks_number_the_words_of_a_set_alike(tmp_path, monkeypatch):
    """As one process does, also where each rank is started by itself and not forked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    code = TRAIN.replace(
        "    for (x,) in data:",
        """
    import os
    forked = b"oomph._ranks.fork_server" in open("/proc/self/cmdline", "rb").read()
    with open("words-" + os.environ["RANK"], "w") as file:
        file.write(" ".join([str(forked), *{f"word{n}" for n in range(50)}]))
    for (x,) in data:""",
    )
    planned(tmp_path, code, gpus=2)
    first, second = ((tmp_path / f"words-{rank}").read_text() for rank in range(2))
    assert first == second and first.startswith("False")


def test_a_script_that_brings_its_own_ranks_is_refused_by_name(tmp_path):
    """With the way to go on, and as a refusal, not as a failure of the script."""
    code = "import torch\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
    done, run = planned(tmp_path, code, gpus=2)
    assert run["verdict"] == "refused" and done.returncode == 2
    assert "already distributed" in run["failure"]
    (tmp_path / "script.py").write_text(code)
    done = command(tmp_path, "fit", "--gpu", "rtx-3060:2", "script.py")
    assert done.returncode == 1 and "torchrun --nproc-per-node" in done.stderr


def test_devices_that_are_hidden_are_not_there(tmp_path):
    """`CUDA_VISIBLE_DEVICES`, as launchers and schedulers set it."""
    code = """
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = "2,0"
        import torch
        torch.zeros(1, device="cuda")
        print(torch.cuda.device_count(), *(str(torch.cuda.get_device_properties(i).uuid)[-1] for i in range(2)))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = command(tmp_path, "run", "-q", "--gpu", "rtx-3060:4", "script.py")
    assert done.stdout.strip() == "2 2 0", done.stdout + done.stderr


def test_ranks_that_die_under_a_plan_are_reported(tmp_path):
    """Nothing is said to fit, and nobody is left to guess why: each plan with how it ended."""
    code = WIDE.replace("batch_size=16", "batch_size=2") + (
        "        import os, signal\n"
        "        if 'TORCHELASTIC_RUN_ID' in os.environ and os.environ['RANK'] == '1':\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    result = fit(tmp_path, code, "--memory", "1.5GiB", "--allow", "shard", gpu="rtx-3060:2")
    assert result.status == 3 and result.json["outcome"] == "nothing_fits"
    failures = [one["why"] for one in result.json["rejected"] if "2 GPUs" in one["lever"]]
    assert failures and all("rank 1: it was killed by SIGSEGV" in why for why in failures), failures
    assert "SIGSEGV" in result.out
