"""For all tests: the command; hypothesis without deadlines, since machines stall, and in CI with the same examples every time."""

import os
import sys

import pytest
from tests.commands import Command, Outcome

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a GPU machine runs tests/test_gpu.py without it
    pass
else:
    settings.register_profile(
        "starseq", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("starseq")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Outcome:
        from starseq import cli

        monkeypatch.setattr(sys, "argv", ["starseq", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        captured = capsys.readouterr()
        code = exit.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call
