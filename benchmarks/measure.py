"""What `starseq bench` does not measure: how cost grows, steps of training, the data tools, and decoding.

python benchmarks/measure.py growth --device cuda --seconds 1 # with the labels, and with the vocabulary
python benchmarks/measure.py train --device cuda --check      # steps of the published models; large batches take 40 GiB
python benchmarks/measure.py data --corpora ../shared/data    # drop on a million rows, reading every corpus there
python benchmarks/measure.py decode --corpora ../shared/data  # greedy decoding, beam search and rescoring
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # for `benchmarks`, when this is run as a program

from starseq.jobs import bench_results as results  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measures how cost grows, steps of training, the data tools, or decoding."
    )
    parser.add_argument("what", choices=("growth", "train", "data", "decode"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of growth and train")
    parser.add_argument("--case", action="append", default=[], help="of train: only this one; may be repeated")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of growth and train: for each case (default: %(default)s)"
    )
    parser.add_argument("--corpora", type=Path, help="folder with NAME/manifest.jsonl and lm-gutenberg-en/text.txt.xz")
    parser.add_argument("--lm", type=Path, help="5-gram of decode (default: estimated, which takes minutes)")
    parser.add_argument("--save", type=Path, metavar="CSV", help="add the results to a file")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where a ratio is above its target by more than chance"
    )
    parser.add_argument("--targets", type=Path, default=ROOT / "benchmarks" / "targets.csv")
    args = parser.parse_args(argv)
    try:
        return _measure(args)
    except (ValueError, OSError) as error:
        _say(str(error))
        return 2


def _measure(args: argparse.Namespace) -> int:
    if args.save is not None:
        results.load(args.save)  # before anything is measured
    if args.check:
        results.read_targets(args.targets)
    if args.what == "growth":
        from benchmarks.growth import bench_growth

        rows = bench_growth(args.device, seconds=args.seconds)
    elif args.what == "train":
        from benchmarks.train import bench_train

        rows = bench_train(args.device, args.case, seconds=args.seconds, note=_say)
    elif args.what == "data":
        from benchmarks.data import bench_data

        rows = bench_data(args.corpora)
    else:
        from benchmarks.decode import bench_decode

        if args.corpora is None:
            raise ValueError("decode makes its utterances from a text: give --corpora")
        rows = bench_decode(args.corpora, args.lm)
    print(results.table(rows))
    if args.save is not None:
        results.save(rows, args.save)
    failures = results.check(rows, args.targets) if args.check else []
    for line in (*failures, *(results.undecided(rows, args.targets) if args.check else ())):
        _say(line)
    return 1 if failures else 0


def _say(line: str) -> None:
    print(f"measure.py: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
