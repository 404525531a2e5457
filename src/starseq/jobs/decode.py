"""Beam search of a run over a manifest: emissions are computed once and kept, n-best lists go on where they were stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starseq.data.errors import DataError
from starseq.decode.beam import Beam, BeamSearch, search_all
from starseq.decode.emissions_cache import EmissionCache
from starseq.decode.lexicon import Lexicon
from starseq.decode.nbest import NBest, NBestWriter, best, read_nbest
from starseq.decode.rescore import rescore
from starseq.lm import Scorer, scorers
from starseq.runs import Run, emissions
from starseq.runs.folder import data_root
from starseq.text.gaps import Unit

__all__ = ["TUNED", "BeamReader", "cached_emissions", "nbest_lists", "read_tuned", "scorer_of", "search_of"]

TUNED = "tuned.json"
"""The weights that were found, with a language model, `beam`, and without one, `alone`; in each maybe `rescore`, of its n best."""

Progress = Callable[[int, int | None], None]
CACHE = "decode"
"""Folder of a run with what is kept between searches. It may be deleted at any time."""

_SPARSE_FROM = 1000
"""Tokens from which on only the best of each frame are kept: letters fit on the disk as they are, 50,001 words do not."""


def search_of(
    run: Run, *, lm: str | os.PathLike[str] | None, lexicon: str | os.PathLike[str] | None = None, alpha: float = 0.0,
    beta: float = 0.0, beam: Beam = Beam(),
) -> BeamSearch:  # fmt: skip
    """The search that fits a run's tokens, and how it is read."""
    words = None if lexicon is None else Lexicon.read(lexicon, run.tokeniser.vocabulary)
    return BeamSearch(
        run.tokeniser, merge_repeats=run.merges_repeats, lm=lm, lexicon=words, alpha=alpha, beta=beta, beam=beam
    )


def cached_emissions(
    run: Run, manifest: str | os.PathLike[str], *, split: str | None, beam: Beam = Beam(), device: str = "cpu",
    root: str | os.PathLike[str] | None = None, progress: Progress = lambda done, total: None,
) -> EmissionCache:  # fmt: skip
    """The emissions of the rows of a split that have a complete text, from the run's cache if its model and the manifest are the
    same as then.

    Of a large vocabulary four times as many tokens of each frame are kept as the beam looks at.
    """
    keep = 4 * beam.tokens if len(run.tokeniser.vocabulary) >= _SPARSE_FROM else None
    key = _hash("complete", _file(run.weights), _file(manifest), split, keep, len(run.tokeniser.vocabulary))
    folder = run.folder / CACHE / f"emissions-{_hash(os.path.realpath(manifest), split)}"
    cache = EmissionCache.open(folder, key)
    if cache is None:
        found = emissions(run, manifest, split=split, device=device, root=root, progress=progress)
        wanted = (e for e in found if e.row.complete)
        cache = EmissionCache.write(folder, ((e.id, e.log_probs, e.reference) for e in wanted), key=key, keep=keep)
    return cache


def nbest_lists(
    search: BeamSearch, cache: EmissionCache, folder: Path, *, workers: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[NBest]:  # fmt: skip
    """The n-best lists of all cached utterances, in their order; written to `folder` as they come, read from there next time."""
    settings: dict[str, Any] = {
        "emissions": cache.key,
        "lm": _file(search.lm.path) if search.lm is not None else None,
        "lexicon": _hash(search.lexicon.words, search.lexicon.spellings) if search.lexicon is not None else None,
        "alpha": search.alpha,
        "beta": search.beta,
        "beam": asdict(search.beam),
    }
    path = folder / f"nbest-{_hash(settings)}.jsonl"
    if not path.exists():
        with NBestWriter(path, settings) as writer:
            before = len(writer.done)

            def report(done: int) -> None:
                progress(before + done, len(cache))

            for nbest in search_all(search, cache.but(frozenset(writer.done)), workers=workers, progress=report):
                writer.add(nbest)
            writer.finish()
    return list(read_nbest(path))


def scorer_of(run: Run, path: str | os.PathLike[str], *, lexicon: bool = False, device: str = "cpu") -> Scorer:
    """The language model at `path` for texts of this run; an n-gram is of words where the run or a lexicon has words."""
    return scorers.load(path, unit="word" if lexicon else run.tokeniser.unit, device=device)


def read_tuned(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """``tuned.json`` of a run; empty where nothing was tuned."""
    path = Path(folder, TUNED)
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        found = {name: record[name] for name in ("alone", "beam") if name in record}
        for weights in found.values():
            float(weights["alpha"]), float(weights["beta"])
    except (ValueError, TypeError, KeyError):
        raise DataError(f"{path}: damaged; run `starseq tune` again") from None
    return found


@dataclass
class BeamReader:
    """Beam search and rescoring as methods of `starseq.jobs.evaluate.evaluate`, beside greedy reading.

    Weights that are None are those that `starseq tune` found with the same language model and lexicon; where there are none, a
    `DataError` says so, but without a language model the length has weight 0. `rescore_lm` adds a method that reorders the n best
    of the search.
    """

    lm: str | os.PathLike[str] | None = None
    lexicon: str | os.PathLike[str] | None = None
    rescore_lm: str | os.PathLike[str] | None = None
    alpha: float | None = None
    beta: float | None = None
    rescore_alpha: float | None = None
    rescore_beta: float | None = None
    rescore_unit: Unit = "char"
    beam: Beam = field(default_factory=Beam)
    workers: int = 0
    device: str = "cpu"
    root: str | os.PathLike[str] | None = None
    progress: Progress = lambda done, total: None
    searched: bool = False
    """a beam search also where no language model, no lexicon and no beta asks for one"""

    def methods(self) -> Mapping[str, Callable[[Run, Path, str | None], Mapping[str, str]]]:
        """Name to decoder, in the order of a table."""
        if self.lm is None and self.alpha:
            raise ValueError(f"alpha: a weight of {self.alpha:g} needs a language model, and none was given")
        for name, weight in (("alpha", self.rescore_alpha), ("beta", self.rescore_beta)):
            if self.rescore_lm is None and weight:
                raise ValueError(f"rescore {name}: a weight of {weight:g} needs a language model to rescore with")
        asked = (self.lm, self.rescore_lm, self.lexicon, self.beta)
        if all(option is None for option in asked) and not self.searched:
            return {}
        return {"beam": self.read_by_beam} | ({"rescored": self.read_rescored} if self.rescore_lm is not None else {})

    def read_by_beam(self, run: Run, manifest: Path, split: str | None) -> dict[str, str]:
        """The best text of every row, by id."""
        return {nbest.id: best(nbest).text for nbest in self._lists(run, manifest, split)}

    def read_rescored(self, run: Run, manifest: Path, split: str | None) -> dict[str, str]:
        """The best text of every row after rescoring, by id."""
        reorder = self.rescorer(run)
        lists = self._lists(run, manifest, split)
        found = reorder(lists, lambda done: self.progress(done, len(lists)))
        return {nbest.id: best(nbest).text for nbest in found}

    def search(self, run: Run) -> BeamSearch:
        """The search that was asked for, with its weights."""
        alpha, beta = self.search_weights(run)
        return search_of(run, lm=self.lm, lexicon=self.lexicon, alpha=alpha, beta=beta, beam=self.beam)

    def rescorer(self, run: Run) -> Callable[[Iterable[NBest], Callable[[int], None]], Iterator[NBest]]:
        """``reorder(lists, progress)``: the lists of the search by `rescore_lm`, or as they are where there is none."""
        if self.rescore_lm is None:
            return lambda lists, progress: iter(lists)
        alpha, beta = self.rescore_weights(run)
        scorer = scorer_of(run, self.rescore_lm, lexicon=self.lexicon is not None, device=self.device)
        return lambda lists, progress: rescore(lists, scorer, alpha, beta, unit=self.rescore_unit, progress=progress)

    def _lists(self, run: Run, manifest: Path, split: str | None) -> list[NBest]:
        search = self.search(run)
        own = run.trained_here and manifest == run.manifest
        root = data_root(run.recipe, run.folder) if self.root is None and own else self.root
        cache = cached_emissions(
            run, manifest, split=split, beam=self.beam, device=self.device, root=root, progress=self.progress
        )
        return nbest_lists(search, cache, run.folder / CACHE, workers=self.workers, progress=self.progress)

    def search_weights(self, run: Run) -> tuple[float, float]:
        """alpha and beta of the search."""
        if self.alpha is not None and self.beta is not None:
            return self.alpha, self.beta
        tuned = read_tuned(run.folder).get("alone" if self.lm is None else "beam")
        fits = tuned is not None and all(
            _same_file(tuned.get(name), path) for name, path in (("lm", self.lm), ("lexicon", self.lexicon))
        )
        if self.lm is None:  # nothing for alpha to weigh
            if self.beta is not None or not fits:
                return 0.0, self.beta or 0.0
            assert tuned is not None
            return 0.0, tuned["beta"]
        if not os.path.exists(self.lm):
            raise DataError(f"{os.fspath(self.lm)}: no such file or directory")
        if tuned is None or not fits:
            raise self._not_tuned(run, "beam", tuned, self.lm)
        return _given_or_tuned(self.alpha, self.beta, tuned)

    def rescore_weights(self, run: Run) -> tuple[float, float]:
        """alpha and beta of rescoring."""
        assert self.rescore_lm is not None
        if self.rescore_alpha is not None and self.rescore_beta is not None:
            return self.rescore_alpha, self.rescore_beta
        search = read_tuned(run.folder).get("alone" if self.lm is None else "beam", {})
        tuned = search.get("rescore")
        if tuned is None or not _same_file(tuned.get("lm"), self.rescore_lm):
            raise self._not_tuned(run, "rescore", tuned, self.rescore_lm)
        return _given_or_tuned(self.rescore_alpha, self.rescore_beta, tuned)

    def _not_tuned(
        self, run: Run, method: str, tuned: Mapping[str, Any] | None, lm: str | os.PathLike[str]
    ) -> DataError:
        what, use = "are not tuned", os.fspath(lm)
        if tuned is not None:
            what = f"were tuned with {tuned.get('lm') or 'no language model'}" + (
                f" and the lexicon {tuned['lexicon']}" if tuned.get("lexicon") else ""
            )
        if method == "beam" and self.lexicon is not None:
            use += f" and the lexicon {os.fspath(self.lexicon)}"
        return DataError(
            f"{run.folder}: the weights of {method} {what}: run `starseq tune` with {use}, or give alpha and beta"
        )


def _given_or_tuned(alpha: float | None, beta: float | None, tuned: Mapping[str, Any]) -> tuple[float, float]:
    return tuned["alpha"] if alpha is None else alpha, tuned["beta"] if beta is None else beta


def _same_file(first: str | None, second: str | os.PathLike[str] | None) -> bool:
    if first is None or second is None:
        return first is second
    return os.path.realpath(first) == os.path.realpath(second)


def _file(path: str | os.PathLike[str]) -> list[Any]:
    """What tells one state of a file from another without reading it."""
    state = os.stat(path)
    return [os.path.realpath(path), state.st_size, state.st_mtime_ns]


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
