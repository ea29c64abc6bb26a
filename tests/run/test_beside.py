"""Work beside the program: it is done when somebody waits for it, whatever becomes of the process that does it."""

import os
import signal

import pytest
from oomph._recorder import beside

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: nothing is done beside"
)


def written(place):
    """Who wrote each of its lines."""
    return [int(line) for line in place.read_text().split()]


def writes(place):
    with open(place, "a") as file:
        file.write(f"{os.getpid()}\n")


def test_another_process_does_it_once(tmp_path):
    place = tmp_path / "saved"
    works = beside.Beside()
    works.do(lambda: writes(place), place.exists)
    works.wait()
    works.wait()
    assert len(written(place)) == 1 and written(place) != [os.getpid()]


@pytest.mark.parametrize("end", ["raises", "is killed", "does nothing"])
def test_what_another_process_failed_to_do_is_done_here(tmp_path, end):
    place, here = tmp_path / "saved", os.getpid()

    def work():
        if os.getpid() == here:
            writes(place)
        elif end == "raises":
            raise RuntimeError(end)
        elif end == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    works = beside.Beside()
    works.do(work, place.exists)
    works.wait()
    assert written(place) == [here]


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "_LONGEST", 0.1)
    place, here = tmp_path / "saved", os.getpid()
    works = beside.Beside()
    works.do(lambda: writes(place) if os.getpid() == here else signal.pause(), place.exists)
    works.wait()
    assert written(place) == [here]


def test_a_fork_of_the_program_does_not_wait_for_its_parents_work(tmp_path):
    works = beside.Beside()
    works.do(lambda: None, lambda: True)
    child = os.fork()
    if child == 0:
        works.wait()
        works.do(lambda: writes(tmp_path / "of the fork"), (tmp_path / "of the fork").exists)
        works.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and len(written(tmp_path / "of the fork")) == 1
    works.wait()


def test_where_no_process_can_be_forked_it_is_done_at_once(tmp_path, monkeypatch):
    def refuses():
        raise OSError("no process")

    monkeypatch.setattr(os, "fork", refuses)
    beside.Beside().do(lambda: writes(tmp_path / "saved"), lambda: True)
    assert written(tmp_path / "saved") == [os.getpid()]
