"""`starseq demo`: it runs, says the same twice, and shows what it is there to show."""

from __future__ import annotations

import sys

import pytest
import torch

from starseq import cli
from starseq.jobs.demo import demo


def test_stc_learns_from_partial_labels_what_ctc_does_not() -> None:
    done: list[tuple[int, int | None]] = []
    result = demo(progress=lambda *counts: done.append(counts))
    (full, partial, star) = result.models
    assert [model[:2] for model in result.models] == [("CTC", "full"), ("CTC", "partial"), ("STC", "partial")]
    assert full.errors.percent < 5
    assert star.errors.percent < partial.errors.percent / 2
    assert done == [(n + 1, 900) for n in range(900)]
    assert 0.3 < result.dropped < 0.5

    full_label, partial_label = result.planted
    assert partial_label.stc < full_label.ctc + 2 < partial_label.ctc  # CTC takes the unlabelled "a" for a mistake


def test_the_same_seed_gives_the_same_result_and_leaves_torch_alone() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert demo(steps=3, seed=1) == demo(steps=3, seed=1)
    assert demo(steps=3, seed=1) != demo(steps=3, seed=2)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_command_prints_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["starseq", "demo", "--steps", "2"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    assert capsys.readouterr().out == demo(steps=2).report() + "\n"


def test_bad_steps() -> None:
    with pytest.raises(ValueError, match=r"^steps: 0 is not a number of optimiser steps above 0$"):
        demo(steps=0)
