"""`benchmarks/measure.py decode`: reading speed on two cores, and what this package adds to flashlight-text's own time.

Utterances are made: 190 frames of 80 ms over 50,000 words and the blank, with words of real sentences planted in them. Most frames
are blank almost surely; at a word its probability is spread over a dozen rivals, and a little of it over the neighbours.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import starseq
from starseq.data.errors import DataError
from starseq.decode.beam import Beam, BeamSearch, LanguageModel, search_all
from starseq.decode.complete import complete
from starseq.decode.greedy import greedy
from starseq.decode.nbest import NBest
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.decode.rescore import rescore
from starseq.jobs.bench import Progress, _processor
from starseq.jobs.bench_results import DECODE, Measurement
from starseq.lm import Scorer
from starseq.lm.estimate import estimate
from starseq.lm.ngram import NGram
from starseq.lm.text import read_texts
from starseq.lm.transformer import TransformerLM
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

__all__ = ["bench_decode", "made_utterance"]

FRAMES, SECONDS_PER_FRAME, WORDS, WORKERS = 190, 0.08, 50_000, 2
ALPHA, BETA = 0.5, 0.5


def bench_decode(
    corpora: Path, lm: Path | None = None, *, utterances: int = 24, progress: Progress = lambda done, total: None
) -> list[Measurement]:
    """Greedy, beam 500 with a 5-gram, 512-best rescoring: utterances a second and real-time factor; the search over flashlight
    itself, and completion from every second word over the search.

    `lm` is a 5-gram of upper-case words; by default one is estimated from ``lm-gutenberg-en`` in `corpora`, which takes minutes.
    """
    corpus = corpora / "lm-gutenberg-en" / "text.txt.xz"
    if not corpus.exists():
        raise DataError(f"{corpus}: the decoding benchmark makes its utterances from this text")
    texts = list(read_texts([corpus]))
    counts = Counter(word for text in texts for word in text.split())
    tokeniser = Tokeniser(Vocabulary.top(counts, WORDS), "word")
    with tempfile.TemporaryDirectory() as folder:
        if lm is None:
            lm = Path(folder, "5gram.arpa")
            estimate((text.split() for text in texts), lm, order=5, vocabulary=tokeniser.vocabulary.tokens[1:])
        model = LanguageModel(lm, tokeniser.vocabulary.tokens)
        long = [text for text in texts if 25 <= len(text.split()) <= 35][-utterances:]
        made = [(f"u{n}", made_utterance(text.split(), tokeniser.vocabulary, n)) for n, text in enumerate(long)]
        rows = _measure(tokeniser, model, NGram.load(lm), made, progress)
        known = [[w for w in text.split() if w in tokeniser.vocabulary][::2] for text in long[:4]]
        automaton = NGramAutomaton(lm, tokeniser.vocabulary.tokens)
        ratios = _completion(tokeniser, model, automaton, [x for _, x in made[:4]], known)
        return [*rows, _row("completion over beam search, beam 500 and 5-gram", "ratio", "over the search", ratios, 4)]


def made_utterance(words: Sequence[str], vocabulary: Vocabulary, seed: int) -> Tensor:
    """Log-probabilities (FRAMES, V) in which `words` stand, about two frames in three blank beyond doubt.

    >>> log_probs = made_utterance(["a", "b"], Vocabulary(["a", "b", "c"]), 0)
    >>> log_probs.shape, bool((log_probs[:, 0] > -1e-3).float().mean() > 0.5)
    (torch.Size([190, 4]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    size = len(vocabulary)

    def normal(*shape: int, mean: float, scale: float) -> Tensor:
        return mean + scale * torch.randn(*shape, generator=generator)

    logits = normal(FRAMES, size, mean=0, scale=2)
    logits[:, 0] = normal(FRAMES, mean=26, scale=2)
    places = (torch.randperm(FRAMES // 2 - 1, generator=generator)[: len(words)].sort().values * 2 + 1).tolist()
    for place, word in zip(places, words, strict=False):
        # Rivals are frequent words rather than rare ones: rank ~ exp of a uniform number, which is Zipf's law.
        rivals = ((size - 1) ** torch.rand(12, generator=generator)).long().clamp(1, size - 1)
        logits[place, rivals] = normal(12, mean=12, scale=3)
        logits[place, 0] = normal(1, mean=14, scale=3)
        if word in vocabulary:
            token = vocabulary.index(word)
            logits[place, token] = normal(1, mean=18, scale=3)
            logits[[place - 1, place + 1], token] = normal(2, mean=18, scale=2)
    return logits.log_softmax(dim=1)


def _measure(
    tokeniser: Tokeniser, lm: LanguageModel, ngram: NGram, made: Sequence[tuple[str, Tensor]], progress: Progress
) -> list[Measurement]:
    rows: list[Measurement] = []

    def add(*row: Any) -> None:
        rows.append(_row(*row))

    def speed(case: str, count: int, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        spent = time.perf_counter() - start
        add(case, "speed", "utterances a second", [count / spent], count)
        add(case, "real time", "s a second of speech", [spent / (count * FRAMES * SECONDS_PER_FRAME)], count)

    steps = 6
    progress(0, steps)
    search = BeamSearch(tokeniser, merge_repeats=False, lm=lm, alpha=ALPHA, beta=BETA)
    lengths = torch.tensor([FRAMES])
    greedy(made[0][1][None], lengths, merge_repeats=False)
    speed("greedy", len(made), lambda: [greedy(x[None], lengths, merge_repeats=False) for _, x in made])
    progress(1, steps)
    search(made[0][1])  # compiled code is loaded
    lists: list[NBest] = []
    speed("beam 500, 5-gram", len(made), lambda: lists.extend(search_all(search, made, workers=WORKERS)))
    progress(2, steps)

    characters = Vocabulary(
        [*sorted({letter for nbest in lists for hyp in nbest.hyps for letter in hyp.text}), "<unk>"]
    )
    torch.manual_seed(0)
    rescorers: dict[str, tuple[Scorer, list[NBest]]] = {
        "512-best, 5-gram": (ngram, lists),
        "512-best, Transformer of 6 x 512 over characters": (TransformerLM(characters, "char").eval(), lists[:2]),
    }
    for done, (name, (scorer, part)) in enumerate(rescorers.items(), start=3):
        list(rescore([NBest("", part[0].hyps[:2])], scorer, ALPHA, BETA))

        def run(scorer: Scorer = scorer, part: Sequence[NBest] = part) -> None:
            list(rescore(part, scorer, ALPHA, BETA))

        speed(name, len(part), run)
        progress(done, steps)

    for name, beam in (
        ("beam over flashlight itself, the same pruning", replace(search.beam, token_threshold=math.inf)),
        ("beam over flashlight itself, as shipped", search.beam),
    ):
        ratios = _overhead(search, beam, [x for _, x in made[:4]])
        add(name, "ratio", "over flashlight", ratios, len(ratios))
    progress(steps, steps)
    return rows


def _row(case: str, metric: str, unit: str, values: Sequence[float], runs: int) -> Measurement:
    shape = f"{runs} x {FRAMES} frames, {WORDS + 1} tokens"
    low, middle, high = np.quantile(values, (0.2, 0.5, 0.8)).tolist()
    machine = (f"{_processor()}, {WORKERS} processes", torch.__version__, starseq.__version__)
    return Measurement(f"{DECODE}{case}", shape, "float32", "starseq", metric, unit, low, middle, high, runs, *machine)


def _overhead(search: BeamSearch, beam: Beam, utterances: Sequence[Tensor]) -> list[float]:
    """Time of ours over a plain call of flashlight with the same settings, in turns, both in this process and merging repeats."""
    ours = BeamSearch(search.tokeniser, merge_repeats=True, lm=search.lm, alpha=search.alpha, beam=beam)
    plain = ours._native(beam)

    def run_plain(log_probs: Tensor) -> None:
        array = log_probs.numpy()
        plain.decode(array.ctypes.data, *array.shape)

    return [_cpu_time(ours, x) / _cpu_time(run_plain, x) for x in utterances]


def _completion(
    tokeniser: Tokeniser, lm: LanguageModel, automaton: NGramAutomaton, utterances: Sequence[Tensor],
    known: Sequence[Sequence[str]],
) -> list[float]:  # fmt: skip
    """Time of completing each utterance from its known words over that of searching it, with one beam, in turns."""
    beam = Beam(nbest=1)
    search = BeamSearch(tokeniser, merge_repeats=False, lm=lm, alpha=ALPHA, beta=BETA, beam=beam)
    settings: dict[str, Any] = {
        "lm": automaton, "alpha": ALPHA, "beta": BETA, "normalized": False, "beam": beam.size,
        "beam_threshold": beam.threshold, "tokens_per_frame": beam.tokens,
    }  # fmt: skip

    def fill(log_probs: Tensor, labels: Sequence[int]) -> None:
        complete(log_probs, labels, **settings)

    labels = [[tokeniser.vocabulary.index(word) for word in words] for words in known]
    fill(utterances[0], labels[0])  # compiled
    return [_cpu_time(fill, x, y) / _cpu_time(search, x) for x, y in zip(utterances, labels, strict=True)]


def _cpu_time(run: Callable[..., object], *arguments: object) -> float:
    start = time.process_time()
    run(*arguments)
    return time.process_time() - start
