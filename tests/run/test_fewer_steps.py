"""When a script ends after fewer steps than it was asked for (`fewer` of its settings)."""

import pytest
from oomph._protocol import Fewer, RunDirectory
from oomph._recorder.progress import Progress, StepsDone

ENOUGH = 1 << 40


@pytest.mark.parametrize(
    ("fewer", "expected"),
    [
        (None, 8),
        (Fewer(steps=3, bytes=ENOUGH, first_bytes=ENOUGH, seconds=60), 8),
        (Fewer(steps=3, bytes=ENOUGH, first_bytes=ENOUGH, seconds=0), 3),
        (Fewer(steps=1, bytes=ENOUGH, first_bytes=ENOUGH, seconds=0), 2),
        (Fewer(steps=3, bytes=-1, first_bytes=ENOUGH, seconds=60), 2),
        (Fewer(steps=3, bytes=ENOUGH, first_bytes=-1, seconds=60), 1),
    ],
)
def test_a_script_ends_once_further_steps_are_not_worth_it(tmp_path, fewer, expected):
    progress = Progress(RunDirectory(tmp_path), 8, None, None, None)
    progress.fewer = fewer
    with pytest.raises(StepsDone):
        for _ in range(20):
            progress.end_step()
    assert (progress.step, progress.stopped) == (expected, True)
