"""Beam search of a run over a manifest: emissions are computed once and kept, n-best lists go on where they were stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starseq import criteria
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
"""By name the weights that were found: `beam` with a language model, `alone` without one, `rescore`."""

Progress = Callable[[int, int | None], None]
CACHE = "decode"
"""Folder of a run with what is kept between searches. It may be deleted at any time."""

_SPARSE_FROM = 1000
"""Tokens from which on only the best of each frame are kept: letters fit on the disk as they are, 50,001 words do not."""


def search_of(
    run: Run, *, lm: str | os.PathLike[str] | None, lexicon: str | os.PathLike[str] | None = None, alpha: float = 0.0,
    beta: float = 0.0, beam: Beam = Beam(),  # noqa: B008 - frozen
) -> BeamSearch:  # fmt: skip
    """The search that fits a run's tokens and criterion."""
    words = None if lexicon is None else Lexicon.read(lexicon, run.tokeniser.vocabulary)
    merge_repeats = criteria.merges_repeats(run.criterion)
    return BeamSearch(
        run.tokeniser, merge_repeats=merge_repeats, lm=lm, lexicon=words, alpha=alpha, beta=beta, beam=beam
    )


def cached_emissions(
    run: Run, manifest: str | os.PathLike[str], *, split: str | None, beam: Beam = Beam(), device: str = "cpu",  # noqa: B008
    root: str | os.PathLike[str] | None = None, progress: Progress = lambda done, total: None,
) -> EmissionCache:  # fmt: skip
    """The emissions of a split, from the run's cache if its model and the manifest are the same as then.

    Of a large vocabulary four times as many tokens of each frame are kept as the beam looks at.
    """
    keep = 4 * beam.tokens if len(run.tokeniser.vocabulary) >= _SPARSE_FROM else None
    model = run.folder / "model.safetensors"
    key = _hash(_file(model), _file(manifest), split, keep, len(run.tokeniser.vocabulary))
    folder = run.folder / CACHE / f"emissions-{_hash(os.path.realpath(manifest), split)}"
    cache = EmissionCache.open(folder, key)
    if cache is None:
        found = emissions(run, manifest, split=split, device=device, root=root, progress=progress)
        cache = EmissionCache.write(folder, ((e.id, e.log_probs, e.reference) for e in found), key=key, keep=keep)
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


def read_tuned(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """``tuned.json`` of a run; empty where nothing was tuned."""
    path = Path(folder, TUNED)
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict):
            raise ValueError
    except ValueError:
        raise DataError(f"{path}: damaged; run `starseq tune` again") from None
    return record


@dataclass
class BeamReader:
    """Beam search and rescoring as methods of `starseq.jobs.evaluate.evaluate`, beside greedy reading.

    Weights that are None are those that `starseq tune` found with the same language model; where there are none, a `DataError`
    says so. `rescore_lm` adds a method that reorders the n best of the search.
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
    """a beam search also where no language model and no lexicon asks for one"""

    def methods(self) -> Mapping[str, Callable[[Run, Path, str | None], Mapping[str, str]]]:
        """Name to decoder, in the order of a table."""
        if self.lm is None and self.alpha:
            raise ValueError(f"alpha: a weight of {self.alpha:g} needs a language model, and none was given")
        if self.rescore_lm is None and self.rescore_alpha:
            raise ValueError(
                f"rescore alpha: a weight of {self.rescore_alpha:g} needs a language model to rescore with"
            )
        if self.lm is None and self.rescore_lm is None and self.lexicon is None and not self.searched:
            return {}
        return {"beam": self.read_by_beam} | ({"rescored": self.read_rescored} if self.rescore_lm is not None else {})

    def read_by_beam(self, run: Run, manifest: Path, split: str | None) -> dict[str, str]:
        """The best text of every row, by id."""
        return {nbest.id: best(nbest).text for nbest in self._lists(run, manifest, split)}

    def read_rescored(self, run: Run, manifest: Path, split: str | None) -> dict[str, str]:
        """The best text of every row after rescoring, by id."""
        assert self.rescore_lm is not None
        alpha, beta = self.weights(run, "rescore", self.rescore_lm, self.rescore_alpha, self.rescore_beta)
        scorer = scorer_of(run, self.rescore_lm, lexicon=self.lexicon is not None, device=self.device)
        lists = self._lists(run, manifest, split)
        found = rescore(
            lists, scorer, alpha, beta, unit=self.rescore_unit, progress=lambda done: self.progress(done, len(lists))
        )
        return {nbest.id: best(nbest).text for nbest in found}

    def _lists(self, run: Run, manifest: Path, split: str | None) -> list[NBest]:
        alpha, beta = self.weights(run, "beam", self.lm, self.alpha, self.beta)
        search = search_of(run, lm=self.lm, lexicon=self.lexicon, alpha=alpha, beta=beta, beam=self.beam)
        root = data_root(run.recipe, run.folder) if self.root is None and manifest == run.manifest else self.root
        cache = cached_emissions(
            run, manifest, split=split, beam=self.beam, device=self.device, root=root, progress=self.progress
        )
        return nbest_lists(search, cache, run.folder / CACHE, workers=self.workers, progress=self.progress)

    def weights(
        self, run: Run, method: str, lm: str | os.PathLike[str] | None, alpha: float | None, beta: float | None
    ) -> tuple[float, float]:
        """alpha and beta, each as given or else as `starseq tune` found it for this method, ``beam`` or ``rescore``, and model."""
        if alpha is not None and beta is not None:
            return alpha, beta
        if lm is None:  # nothing for alpha to weigh
            return 0.0, read_tuned(run.folder).get("alone", {"beta": 0.0})["beta"] if beta is None else beta
        tuned = read_tuned(run.folder).get(method)
        if tuned is None or not _same_file(tuned["lm"], lm):
            if method == "beam" and not os.path.exists(lm):
                raise DataError(f"{os.fspath(lm)}: no such file or directory")
            what = "are not tuned" if tuned is None else f"were tuned with {tuned['lm']}"
            raise DataError(
                f"{run.folder}: the weights of {method} {what}: run `starseq tune` with {os.fspath(lm)}, or give alpha and beta"
            )
        return tuned["alpha"] if alpha is None else alpha, tuned["beta"] if beta is None else beta


def _same_file(first: str, second: str | os.PathLike[str]) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _file(path: str | os.PathLike[str]) -> list[Any]:
    """What tells one state of a file from another without reading it."""
    state = os.stat(path)
    return [os.path.realpath(path), state.st_size, state.st_mtime_ns]


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
