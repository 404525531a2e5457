"""`starseq tune`: alpha and beta of beam search and of rescoring, on the dev split of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.decode.beam import Beam, BeamSearch
from starseq.decode.emissions_cache import EmissionCache
from starseq.decode.greedy import greedy
from starseq.decode.nbest import NBest, best, merge
from starseq.decode.rescore import score_lists
from starseq.decode.weights import ALPHAS, BETAS, Weights, best_weights
from starseq.jobs.decode import CACHE, TUNED, Progress, cached_emissions, nbest_lists, read_tuned, scorer_of, search_of
from starseq.report.surface import plot_surface
from starseq.runs.folder import data_root
from starseq.text.error_rate import ErrorCounts, cer, wer
from starseq.text.gaps import Unit

__all__ = ["Round", "Tuned", "tune"]


@dataclass(frozen=True)
class Round:
    """One search over the split: its weights, and the error rate of its best texts."""

    alpha: float
    beta: float
    percent: float


@dataclass(frozen=True)
class Tuned:
    """The weights found, as in ``tuned.json``. `percent` is the error rate of a search with these very weights."""

    metric: str
    greedy: float
    beam: Round
    rounds: tuple[Round, ...]
    rescore: Round | None
    rescore_unit: Unit

    def report(self) -> str:
        """A table in plain text."""
        lines = [
            f"{'':<10}{'alpha':>8}{'beta':>8}{self.metric + ', %':>9}",
            f"{'greedy':<10}{'':>8}{'':>8}{self.greedy:>9.2f}",
        ]
        for name, found in (("beam", self.beam), ("rescored", self.rescore)):
            if found is not None:
                lines.append(f"{name:<10}{found.alpha:>8.3f}{found.beta:>8.3f}{found.percent:>9.2f}")
        return "\n".join(lines)


def tune(
    folder: str | os.PathLike[str], *, lm: str | os.PathLike[str] | None, lexicon: str | os.PathLike[str] | None = None,
    rescore: str | os.PathLike[str] | None = None, rescore_unit: Unit = "char", split: str | None = "dev",
    manifest: str | os.PathLike[str] | None = None, root: str | os.PathLike[str] | None = None,
    beam: Beam = Beam(), alpha: float = 0.5, beta: float = 0.0, alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS, rounds: int = 4, workers: int = 0, device: str = "cpu",
    progress: Progress = lambda done, total: None,
) -> Tuned:  # fmt: skip
    """Finds the weights with the fewest errors on a split, and writes them to ``RUN/tuned.json``.

    A search at (alpha, beta) gives n-best lists; the best weights for these lists are cheap to find; a search with them gives
    new lists, which join the old ones; and so on until the weights stay, or `rounds` searches are done. Acoustic and language
    model scores of a text are the same in every search, so lists may be joined. What wins is a point that was searched.

    With `rescore`, a language model of any kind, weights for reordering the n best of the winning search follow; |y| is then
    in `rescore_unit`. Without `lm`, alpha is 0 and beta alone is looked for; what was found with a language model stays, and the
    other way round. Surfaces go to ``RUN/plots``: ``tune-beam.png`` or ``tune-alone.png``, and ``tune-rescore.png``. Word errors
    for tokens that are words or come from a lexicon, otherwise character errors. Emissions and n-best lists are kept in
    ``RUN/decode``, so that a job that was stopped goes on where it was.
    """
    if rounds < 2:
        raise ValueError(f"rounds: {rounds} is too few: the first search has the weights that it begins with")
    run = runs.load(folder)
    if lm is None:
        alpha, alphas = 0.0, (0.0,)
    manifest, root = _where(run, manifest, root)
    search = search_of(run, lm=lm, lexicon=lexicon, alpha=alpha, beta=beta, beam=beam)
    cache = cached_emissions(run, manifest, split=split, beam=beam, device=device, root=root, progress=progress)
    if not len(cache):
        where = "" if split is None else f" of split {split!r}"
        raise DataError(f"{os.fspath(manifest)}: no row{where} has a complete text to tune on")
    scorer = None if rescore is None else scorer_of(run, rescore, lexicon=lexicon is not None, device=device)
    unit: Unit = "word" if lexicon is not None else run.tokeniser.unit
    rate = _rate(unit)
    kept = run.folder / CACHE

    lists: list[NBest] = []
    searched: dict[tuple[float, float], tuple[Round, list[NBest]]] = {}
    weights: Weights | None = None
    at = (alpha, beta)
    while at not in searched and len(searched) < rounds:
        found = nbest_lists(search.at(*at), cache, kept, workers=workers, progress=progress)
        texts = [best(nbest).text for nbest in found]
        searched[at] = (Round(*at, rate(cache.references, texts).percent), found)
        lists = [merge(*pair) for pair in zip(lists, found, strict=True)] if lists else found
        weights = best_weights(lists, cache.references, unit=unit, alphas=alphas, betas=betas, progress=progress)
        at = (weights.alpha, weights.beta)
    assert weights is not None
    winner, winning = min(searched.values(), key=lambda pair: (pair[0].percent, pair[0].alpha, abs(pair[0].beta)))
    metric = "WER" if unit == "word" else "CER"
    surface = Weights(winner.alpha, winner.beta, winner.percent, weights.surface)
    plots = run.folder / "plots"
    kind = "alone" if lm is None else "beam"
    plot_surface(surface, plots / f"tune-{kind}.png", title=f"Beam search, {split or 'all'}", metric=metric)
    record: dict[str, Any] = {
        **asdict(winner),
        "lm": None if lm is None else os.fspath(lm),
        "lexicon": None if lexicon is None else os.fspath(lexicon),
        "split": split,
        "metric": metric,
        "settings": asdict(beam),
        "searches": [asdict(point) for point, _ in searched.values()],
    }

    rescored = None
    if scorer is not None:
        scored = list(score_lists(winning, scorer, unit=rescore_unit, progress=lambda done: progress(done, len(cache))))
        again = best_weights(scored, cache.references, unit=unit, betas=betas, progress=progress)
        rescored = Round(again.alpha, again.beta, again.percent)
        plot_surface(again, plots / "tune-rescore.png", title=f"Rescoring, {split or 'all'}", metric=metric)
        record["rescore"] = {**asdict(rescored), "lm": os.fspath(rescore or ""), "unit": rescore_unit}

    tuned = {}
    with suppress(DataError):  # damaged: this is how it is mended
        tuned = read_tuned(run.folder)
    tuned[kind] = record
    write_text(run.folder / TUNED, json.dumps(tuned, indent=1, ensure_ascii=False) + "\n")
    runs.update_results(run.folder, tune=tuned)
    points = tuple(point for point, _ in searched.values())
    return Tuned(metric, _greedy(search, cache, unit), winner, points, rescored, rescore_unit)


def _where(
    run: runs.Run, manifest: str | os.PathLike[str] | None, root: str | os.PathLike[str] | None
) -> tuple[str | os.PathLike[str], str | os.PathLike[str] | None]:
    """The manifest, the run's own by default, and the folder that no path of it leaves."""
    if manifest is not None:
        return manifest, root
    return run.manifest, data_root(run.recipe, run.folder) if root is None else root


def _greedy(search: BeamSearch, cache: EmissionCache, unit: Unit) -> float:
    """The error rate without any search."""
    texts = []
    for _, log_probs in cache:
        (tokens,) = greedy(log_probs[None], torch.tensor([len(log_probs)]), merge_repeats=search.merge_repeats)
        texts.append(search.tokeniser.decode(tokens))
    return _rate(unit)(cache.references, texts).percent


def _rate(unit: Unit) -> Callable[[Sequence[str], Sequence[str]], ErrorCounts]:
    return wer if unit == "word" else cer
