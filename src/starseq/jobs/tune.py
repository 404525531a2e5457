"""`starseq tune`: alpha and beta of beam search and of rescoring, on the dev split of a run."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.decode.beam import Beam, BeamSearch, search_all
from starseq.decode.emissions_cache import EmissionCache
from starseq.decode.nbest import NBest, NBestWriter, best, merge, read_nbest
from starseq.decode.rescore import score_lists
from starseq.decode.weights import Weights, best_weights
from starseq.jobs._search import TUNED, Search, greedily, read_tuned
from starseq.jobs._stream import state_of
from starseq.jobs._where import PathLike, Where
from starseq.report.surface import plot_surface
from starseq.runs.folder import data_root
from starseq.text.error_rate import cer, wer
from starseq.text.gaps import Unit

__all__ = ["ROUNDS", "Round", "Tuned", "tune"]

ROUNDS = 4
"""searches at most"""
CACHE = "decode"
"""Folder of a run with what is kept between searches. It may be deleted at any time."""
_SPARSE_FROM = 1000
"""Tokens from which on only the best of each frame are kept: letters fit on the disk as they are, 50,001 words do not."""


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
    folder: PathLike,
    *,
    search: Search = Search(),
    split: str | None = "dev",
    manifest: PathLike | None = None,
    rounds: int = ROUNDS,
    where: Where = Where(),
) -> Tuned:
    """Finds the weights with the fewest errors on a split, and writes them to ``RUN/tuned.json``.

    A `search` at (alpha, beta), 0.5 and 0 unless it says others, gives n-best lists; the best weights for these lists are cheap to
    find; a search with them gives new lists, which join the old ones; and so on until the weights stay, or `rounds` searches are
    done. Acoustic and language model scores of a text are the same in every search, so lists may be joined. What wins is a point
    that was searched.

    With ``search.rescore``, a language model of any kind, weights for reordering the n best of the winning search follow; |y| is
    then in characters. Without ``search.lm``, alpha is 0 and beta alone is looked for; what was found with a language model stays,
    and the other way round. Surfaces go to ``RUN/plots``: ``tune-beam.png`` or ``tune-alone.png``, and ``tune-rescore.png``. Word
    errors for tokens that are words or come from a lexicon, otherwise character errors. Emissions and n-best lists are kept in
    ``RUN/decode``, so that a job that was stopped goes on where it was.
    """
    if rounds < 2:
        raise ValueError(f"rounds: {rounds} is too few: the first search has the weights that it begins with")
    run, kind = runs.load(folder), "alone" if search.lm is None else "beam"
    if manifest is None:
        manifest, where = run.manifest, replace(where, root=where.root or data_root(run.recipe, run.folder))
    at = (0.0 if search.lm is None else 0.5 if search.alpha is None else search.alpha, search.beta or 0.0)
    searcher = search.on(run, at)
    cache = cached_emissions(run, manifest, split, search.limits, where)
    if not len(cache):
        within = "" if split is None else f" of split {split!r}"
        raise DataError(f"{os.fspath(manifest)}: no row{within} has a complete text to tune on")
    scorer = search.scorer(run, where.torch_device)  # what is wrong with it is said before the search
    unit: Unit = "word" if search.lexicon is not None else run.tokeniser.unit
    metric, rate = ("WER", wer) if unit == "word" else ("CER", cer)

    def best_of(lists: list[NBest], unit: Unit, **choice: Any) -> Weights:
        return best_weights(lists, cache.references, unit=unit, progress=where.step, **choice)

    def drawn(found: Weights, name: str, title: str) -> None:
        plot_surface(
            found, run.folder / "plots" / f"tune-{name}.png", title=f"{title}, {split or 'all'}", metric=metric
        )

    lists: list[NBest] = []
    searched: dict[tuple[float, float], tuple[Round, list[NBest]]] = {}
    weights: Weights | None = None
    while at not in searched and len(searched) < rounds:
        found = nbest_lists(searcher.at(*at), cache, run.folder / CACHE, where)
        texts = [best(nbest).text for nbest in found]
        searched[at] = (Round(*at, rate(cache.references, texts).percent), found)
        lists = [merge(*pair) for pair in zip(lists, found, strict=True)] if lists else found
        weights = best_of(lists, unit, **({"alphas": (0.0,)} if search.lm is None else {}))
        at = (weights.alpha, weights.beta)
    assert weights is not None
    winner, winning = min(searched.values(), key=lambda pair: (pair[0].percent, pair[0].alpha, abs(pair[0].beta)))
    drawn(Weights(winner.alpha, winner.beta, winner.percent, weights.surface), kind, "Beam search")
    record: dict[str, Any] = {
        **asdict(winner),
        **{name: None if path is None else os.fspath(path) for name, path in (("lm", search.lm), ("lexicon", search.lexicon))},
        "split": split, "metric": metric, "settings": asdict(search.limits),
        "searches": [asdict(point) for point, _ in searched.values()],
    }  # fmt: skip

    rescored = None
    if scorer is not None:
        scored = list(score_lists(winning, scorer, progress=lambda done: where.step(done, len(cache))))
        again = best_of(scored, unit)
        rescored = Round(again.alpha, again.beta, again.percent)
        drawn(again, "rescore", "Rescoring")
        record["rescore"] = {**asdict(rescored), "lm": os.fspath(search.rescore or "")}

    tuned = {}
    with suppress(DataError):  # damaged: this is how it is mended
        tuned = read_tuned(run.folder)
    tuned[kind] = record
    write_text(run.folder / TUNED, json.dumps(tuned, indent=1, ensure_ascii=False) + "\n")
    runs.update_results(run.folder, tune=tuned)
    greedy = rate(cache.references, [greedily(run, log_probs).text for _, log_probs in cache]).percent
    return Tuned(metric, greedy, winner, tuple(point for point, _ in searched.values()), rescored)


def cached_emissions(run: runs.Run, manifest: PathLike, split: str | None, beam: Beam, where: Where) -> EmissionCache:
    """The emissions of the rows of a split that have a complete text, from the run's cache if its model and the manifest are the
    same as then.

    Of a large vocabulary four times as many tokens of each frame are kept as the beam looks at.
    """
    keep = 4 * beam.tokens if len(run.tokeniser.vocabulary) >= _SPARSE_FROM else None
    key = _hash("complete", state_of(run.weights), state_of(manifest), split, keep, len(run.tokeniser.vocabulary))
    folder = run.folder / CACHE / f"emissions-{_hash(os.path.realpath(manifest), split)}"
    cache = EmissionCache.open(folder, key)
    if cache is None:
        found = runs.emissions(
            run, manifest, split=split, device=where.torch_device, root=where.root, progress=where.progress
        )
        wanted = (e for e in found if e.row.complete)
        cache = EmissionCache.write(folder, ((e.id, e.log_probs, e.reference) for e in wanted), key=key, keep=keep)
    return cache


def nbest_lists(search: BeamSearch, cache: EmissionCache, folder: Path, where: Where) -> list[NBest]:
    """The n-best lists of all cached utterances, in their order; written to `folder` as they come, read from there next time."""
    settings: dict[str, Any] = {
        "emissions": cache.key,
        "lm": state_of(search.lm.path) if search.lm is not None else None,
        "lexicon": _hash(search.lexicon.words, search.lexicon.spellings) if search.lexicon is not None else None,
        "alpha": search.alpha,
        "beta": search.beta,
        "beam": asdict(search.beam),
    }
    path = folder / f"nbest-{_hash(settings)}.jsonl"
    if not path.exists():
        with NBestWriter(path, settings) as writer:
            before = len(writer.done)
            remaining = cache.but(frozenset(writer.done))
            for nbest in search_all(
                search, remaining, workers=where.workers, progress=lambda done: where.step(before + done, len(cache))
            ):
                writer.add(nbest)
            writer.finish()
    return list(read_nbest(path))


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
