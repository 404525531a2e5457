"""Handwriting with marked gaps: train on lines in which a * stands for what nobody could read, then fill the gaps.

    pip install 'starseq[all]'
    python examples/handwriting_with_gaps.py

Lines of handwritten digits stand for pages of yours. `starseq prepare` makes such a manifest of PAGE-XML, of ALTO, or of images
with texts. `starseq fit MANIFEST --out FOLDER` does all of this and more in one command.
"""

import argparse
import tempfile
from pathlib import Path

from starseq.config import load_recipe
from starseq.corpora import digits
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.manifest import read_manifest
from starseq.jobs.complete import complete
from starseq.jobs.drop import drop
from starseq.jobs.train import train


def main(steps: int, folder: Path) -> float:
    digits.prepare(folder, train=800, dev=50, test=50)
    # Here digits are lost by chance, and a * says where. `text_full` keeps the whole text, so that we can count below.
    partial = folder / "partial.jsonl"
    holes = Dropper(FixedDrop(0.4), unit="char", mark=True, keep_text=True)
    drop(folder / "manifest.jsonl", partial, holes, splits=["train", "test"])

    recipe = load_recipe(
        "digits",
        [
            "data.corpus=null", f"data.root={folder}", "data.manifest=partial.jsonl", f"trainer.max_steps={steps}",
            f"trainer.eval_every={steps}", f"optim.warmup_steps={steps // 5}", "model.width=48",
            "trainer.accelerator=cpu", "trainer.tensorboard=false",
        ],
    )  # fmt: skip
    train(recipe, folder / "run", on_message=print)

    # force: also with a run that reads badly, as after the few steps of a test.
    complete(folder / "run", partial, folder / "complete.jsonl", split="test", force=True)
    rows = list(read_manifest(folder / "complete.jsonl"))
    right = sum(row.text == row["text_full"] for row in rows)
    for row in rows[:8]:
        print(f"{row.get('text_partial', row.text):>20}  ->  {row.text:<12} it was {row['text_full']}")
    print(f"{right} of {len(rows)} lines are complete and right; a gap that nothing sure was read in stays a *")
    return right / len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    with tempfile.TemporaryDirectory() as output:
        main(parser.parse_args().steps, Path(output))
