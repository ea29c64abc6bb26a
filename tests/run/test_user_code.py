"""What oomph reads of a script's frames."""

import sys
import weakref

from oomph._user_code import local


class Kept:
    """Something that can be seen to go."""


def test_a_look_at_a_variable_keeps_nothing_alive():
    kept = Kept()
    seen = weakref.ref(kept)
    assert local(sys._getframe(), "kept") is kept
    assert local(sys._getframe(), "absent", 1) == 1
    kept = None
    assert seen() is None and kept is None


def test_what_a_script_reads_of_its_variables_stays():
    number = 5
    names = locals()
    assert local(sys._getframe(), "number") == 5
    assert names["number"] == number


def test_variables_of_a_module_and_of_a_class_stay():
    room = {}
    exec("import sys\nfrom oomph._user_code import local\none = 1\ntwo = local(sys._getframe(), 'one')", room)  # fmt: skip
    assert room["one"] == room["two"] == 1

    class Body:
        one = 1
        two = local(sys._getframe(), "one")

    assert Body.one == Body.two == 1
