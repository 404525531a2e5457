"""Every script of examples/ runs, on data that it makes, and is short."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {
    "fine_tune_encoder": ("transformers", "soundfile"),
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
}
SMALL = {"align_an_hour": ("--minutes", "3")}
SAYS = {
    "align_an_hour": "of which put in: 17 of 17",
    "fine_tune_encoder": "read with: starseq transcribe",
    "handwriting_with_gaps": "lines are complete and right",
    "hf_trainer": "train_loss",
    "lightning_module": "read without error",
    "plain_loop": "read without error",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", [str(path), *SMALL.get(path.stem, ("--steps", "20"))])
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    assert SAYS[path.stem] in capsys.readouterr().out


def test_they_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80, path.name
