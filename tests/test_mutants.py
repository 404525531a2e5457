"""`make mutants` takes half an hour, and no change waits for it. That every mutation still applies is known at once."""

import pytest
from tests.mutants import MUTANTS, Mutant, problem_of, together


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies(mutant: Mutant) -> None:
    assert problem_of(mutant) == ""
    assert mutant.old != mutant.new


def test_what_does_not_apply_is_said() -> None:
    mutant = MUTANTS[0]
    assert problem_of(mutant._replace(file="no.py")) == "there is no no.py"
    assert problem_of(mutant._replace(old="no such code")) == f"its old text occurs 0 times in {mutant.file}"
    assert problem_of(mutant._replace(tests="tests/test_no.py -k x")) == "there is no test_no.py"


def test_tests_of_a_file_run_together() -> None:
    mutants = [MUTANTS[0]._replace(tests=tests) for tests in ("a.py -k 'x and y'", "a.py -k z", "b.py -k x", "b.py")]
    assert together(mutants) == [("a.py -k '(x and y) or (z)'", False), ("b.py", False)]
