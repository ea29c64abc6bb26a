"""`oomph fit` for scripts that use JAX: settings that runs try."""

import pytest

from tests.support.command import fit

GIB = 1 << 30


@pytest.mark.usefixtures("frameworks")
def test_more_of_the_gpu_for_jax_is_tried_first_and_said_as_a_line_for_the_shell(tmp_path):
    # Of 11.6 GiB JAX takes three quarters, 8.7 GiB.
    run = fit(tmp_path, "import jax\njax.block_until_ready(jax.numpy.ones((9, 1 << 28)))\n")
    assert run.status == 0, run.err
    assert run.json["outcome"] == "fits" and run.json["runs"] == 2
    [plan] = run.json["plans"]
    [lever] = plan["levers"]
    assert plan["verified"] and plan["same_results"] == "exact"
    assert lever["name"] == "jax_settings" and 900 < lever["thousandths"] < 980
    share = lever["thousandths"] / 1000
    assert f"env XLA_PYTHON_CLIENT_MEM_FRACTION={share:g} python script.py" in run.out
    written = (tmp_path / "oomph-plan.toml").read_text()
    assert f"thousandths = {lever['thousandths']}" in written
