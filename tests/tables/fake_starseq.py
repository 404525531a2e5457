"""Stands in for `starseq` in tests of the runner: writes the files that the commands would, in no time or in as much as asked.

Each command is a line of $FAKE_LOG. A training has a checkpoint a step, and stands still after step $FAKE_STILL. A command that
holds $FAKE_FAIL fails; one that begins with $FAKE_NOTHING does nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    arguments = sys.argv[1:]
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(json.dumps(arguments) + "\n")
    if os.environ.get("FAKE_FAIL", "\0") in " ".join(arguments):
        sys.exit("starseq: it was to fail")
    if os.environ.get("FAKE_NOTHING") == arguments[0]:
        return
    {"train": train, "evaluate": evaluate, "pseudo": pseudo, "tune": tune, "drop": drop}.get(arguments[0], other)(
        arguments
    )


def train(arguments: list[str]) -> None:
    run = Path(option(arguments, "--out"))
    run.mkdir(parents=True, exist_ok=True)
    values = dict(part.split("=", 1) for part in arguments if "=" in part)
    assert Path(values["data.root"], values.get("data.manifest", "manifest.jsonl")).exists()
    steps, checkpoint = int(values["trainer.max_steps"]), run / "last.ckpt"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    assert not done or "--resume" in arguments
    (run / "recipe.yaml").write_text(
        f"data:\n  root: {Path(values['data.root']).resolve()}\n  manifest: manifest.jsonl\n"
    )
    for step in range(done + 1, steps + 1):
        checkpoint.write_text(str(step))
        rows = [f"{at},{0.1 * at / steps},{2.0 * (steps - at)},0.25" for at in range(1, step + 1)]
        (run / "metrics.csv").write_text("\n".join(["step,p,seconds_left,inserted_per_label", *rows]) + "\n")
        if os.environ.get("FAKE_STILL") == str(step):
            time.sleep(600)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {}}).encode()
    (run / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    report = {"steps": steps, "seconds": 0.5, "best_dev": {"step": steps}, "rows": 9, "labels_kept": 50}
    (run / "results.json").write_text(json.dumps({"train": report, "values": values}))


def evaluate(arguments: list[str]) -> None:
    run = Path(arguments[1])
    assert (run / "model.safetensors").exists()
    root = (run / "recipe.yaml").read_text().splitlines()[1].partition(": ")[2].strip('"')
    assert Path(root, "manifest.jsonl").exists()
    results = json.loads((run / "results.json").read_text())
    values = results["values"]
    # Such that the schedule .3/.7 is the best, and that a higher seed is a little worse.
    error = 10.0 + int(values["seed"]) / 10 + abs(float(values.get("penalty.p0", 0.3)) - 0.3)
    scores = {"greedy": {"wer": error, "cer": error / 2}}
    if "--beam" in arguments or "--lm" in arguments:
        gain = json.loads((run / "tuned.json").read_text())["beam" if "--lm" in arguments else "alone"]["alpha"] + 0.5
        scores["beam"] = {"wer": error - gain, "cer": error / 2 - gain}
    results["evaluate"] = {"dev": scores, "test": scores}
    (run / "results.json").write_text(json.dumps(results))


def tune(arguments: list[str]) -> None:
    path = Path(arguments[1], "tuned.json")
    before = json.loads(path.read_text()) if path.exists() else {}
    if "--lm" in arguments:
        assert Path(option(arguments, "--lm")).exists()
    found = {"beam": {"alpha": 0.5, "beta": 0.1}} if "--lm" in arguments else {"alone": {"alpha": 0, "beta": 0.3}}
    path.write_text(json.dumps(before | found))


def pseudo(arguments: list[str]) -> None:
    out = Path(option(arguments, "--out"))
    assert Path(arguments[1], "model.safetensors").exists()
    out.write_text(Path(arguments[2]).read_text())
    rates = {"pseudo": {"wer": 3.0, "cer": 2.0, "right": 1}}
    found = {"rows": {"in": 9, "out": 9}, "labels": {"known": 3, "added": 4}, "errors": rates, "settings": {}}
    out.with_suffix(".summary.json").write_text(json.dumps(found))


def drop(arguments: list[str]) -> None:
    Path(arguments[2]).write_text("{}\n")
    print(f"{arguments[2]}: 8 samples, 1 pruned as nothing of them was left\n50 of 1,250 labels kept (4.0%)\n")
    bars = ["█ 1" if part == 0 else "████ 8" if part == 10 else "0" for part in range(20)]
    print("\n".join(f"{5 * part:3d}-{5 * part + 5}%  {bar}" for part, bar in enumerate(bars)))


def other(arguments: list[str]) -> None:
    if arguments[:2] == ["manifest", "split"]:
        for part in ("train", "dev", "test"):
            path = Path(arguments[3], f"{part}.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n")
        return
    path = Path(arguments[3] if arguments[:2] == ["manifest", "filter"] else option(arguments, "--out"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\\data\\\n\n\\1-grams:\n-1\t<s>\t0\n-1\tone\t0\n-1\ttwo\n\n\\2-grams:\n-1\tone two\n\\end\\\n")


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


if __name__ == "__main__":
    main()
