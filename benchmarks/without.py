"""What the CPU kernels bring: the loss as it is, without sums of probabilities, and without vectors as well.

    python benchmarks/without.py [published|ctc ...]      the rows of the table in docs/performance.md

Each version is a process with a copy of src/ in which one line is changed; they take turns, on one thread, in CPU time.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {
    "iam": (8, 150, 80, 22),
    "letters": (16, 500, 29, 150),
    "pieces": (8, 200, 1000, 20),
    "words": (4, 190, 50_001, 25),
}
LOGARITHMS = ("op/fused_numba.py", "scaled = options.normalized and dtype is _FLOAT32", "scaled = False")
NO_VECTORS = ("lattice/lanes_numba.py", "return bool(like.dtype == types.float32)", "return False")
VERSIONS = {"all": (), "logarithms": (LOGARITHMS,), "no vectors": (LOGARITHMS, NO_VECTORS)}


def work() -> None:
    """Answers lines of criterion, shape and repetitions with seconds."""
    import torch

    import starseq

    torch.set_num_threads(1)
    for line in sys.stdin:
        criterion, shape, repetitions = line.split()
        B, T, V, U = SHAPES[shape]
        generator = torch.Generator().manual_seed(0)
        logits = (3 * torch.randn(T, B, V, generator=generator)).requires_grad_()
        arguments = logits, torch.randint(1, V, (B, U), generator=generator), torch.full((B,), T), torch.full((B,), U)
        start = time.thread_time()
        for _ in range(int(repetitions)):
            logits.grad = None
            if criterion == "ctc":
                loss = starseq.ctc_loss(*arguments)
            else:
                loss = starseq.stc_loss(*arguments, penalty=math.log(0.5), merge_repeats=False)
            loss.backward()
        print((time.thread_time() - start) / int(repetitions), flush=True)


def version(folder: Path, changes: tuple[tuple[str, str, str], ...]) -> subprocess.Popen[str]:
    source = Path(__file__).parent.parent / "src"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        path = folder / "starseq" / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has changed"
        path.write_text(text.replace(old, new))
    command = [sys.executable, __file__, "--work"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen[str], question: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(question, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def main(criteria: list[str]) -> None:
    print("| ms | loss | " + " | ".join(VERSIONS) + " |")
    with tempfile.TemporaryDirectory() as folder:
        processes = [version(Path(folder) / name, changes) for name, changes in VERSIONS.items()]
        for criterion in criteria:
            for shape, (B, T, V, _) in SHAPES.items():
                question = f"{criterion} {shape} {max(1, 2_000_000 // (B * T * V))}"
                times = [[ask(process, question) for process in processes] for _ in range(10)][
                    1:
                ]  # compiled in the first
                medians = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
                print(f"| {shape} | {criterion} | " + " | ".join(f"{x:.3g}" for x in medians) + " |", flush=True)
        for process in processes:
            process.terminate()


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main(sys.argv[1:] or ["published", "ctc"])
