"""A search as the user asks for it: beam, language model, lexicon, rescoring. One object for every verb that reads with a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from starseq.data.errors import DataError
from starseq.decode.beam import Beam, BeamSearch
from starseq.decode.greedy import greedy
from starseq.decode.lexicon import Lexicon
from starseq.decode.nbest import Hypothesis, best
from starseq.decode.rescore import rescore
from starseq.decode.workers import work_ahead
from starseq.jobs._stream import state_of
from starseq.jobs._where import PathLike, Where
from starseq.lm import Scorer, scorers
from starseq.runs import Run

__all__ = ["TUNED", "Readings", "Search", "read_tuned", "reading"]

TUNED = "tuned.json"
"""The weights that were found, with a language model, `beam`, and without one, `alone`; in each maybe `rescore`, of its n best."""

Readings = dict[str, Hypothesis]
"""what was read, by method: "greedy", "beam", "rescored", the best last"""


@dataclass(frozen=True)
class Search:
    """What a search is asked for. Where all of it is None there is none, and a run is decoded greedily.

    Weights that are None are those that `starseq tune` found with the same language model and lexicon. Where there are none, a
    `DataError` says so; without a language model the length then has weight 0.
    """

    lm: PathLike | None = None
    """n-gram model: ARPA or KenLM's binary"""
    lexicon: PathLike | None = None
    """words that a model of letters is held to"""
    rescore: PathLike | None = None
    """language model that reorders the n best"""
    alpha: float | None = None
    beta: float | None = None
    rescore_alpha: float | None = None
    rescore_beta: float | None = None
    beam: int | None = None
    """hypotheses kept after each frame; None: 500"""
    beam_tokens: int = 50
    """tokens of each frame that extend them"""

    def __post_init__(self) -> None:
        if self.lm is None and self.alpha:
            raise ValueError(f"alpha: a weight of {self.alpha:g} needs a language model, and none was given")
        for name, weight in (("alpha", self.rescore_alpha), ("beta", self.rescore_beta)):
            if self.rescore is None and weight:
                raise ValueError(f"rescore {name}: a weight of {weight:g} needs a language model to rescore with")

    @property
    def asked(self) -> bool:
        """Whether there is anything to search with or by."""
        return any(option is not None for option in (self.lm, self.lexicon, self.rescore, self.beta, self.beam))

    @property
    def limits(self) -> Beam:
        return Beam(size=500 if self.beam is None else self.beam, tokens=self.beam_tokens)

    def settings(self, run: Run) -> dict[str, Any]:
        """All that decides what it reads."""
        paths = {"lm": self.lm, "lexicon": self.lexicon, "rescore": self.rescore}
        settings = {name: None if path is None else state_of(path) for name, path in paths.items()}
        weights = [self.weights(run) if self.asked else None, self.rescore_weights(run) if self.rescore else None]
        return {"search": [self.asked, settings, weights, asdict(self.limits)]}

    def on(self, run: Run, weights: tuple[float, float] | None = None, limits: Beam | None = None) -> BeamSearch:
        """The search that fits a run's tokens, and how it is read."""
        alpha, beta = self.weights(run) if weights is None else weights
        words = None if self.lexicon is None else Lexicon.read(self.lexicon, run.tokeniser.vocabulary)
        return BeamSearch(
            run.tokeniser, merge_repeats=run.merges_repeats, lm=self.lm, lexicon=words, alpha=alpha, beta=beta,
            beam=limits or self.limits,
        )  # fmt: skip

    def scorer(self, run: Run, device: str) -> Scorer | None:
        """The language model that rescores; an n-gram is of words where the run or a lexicon has words."""
        if self.rescore is None:
            return None
        unit = "word" if self.lexicon is not None else run.tokeniser.unit
        return scorers.load(self.rescore, unit=unit, device=device)

    def weights(self, run: Run) -> tuple[float, float]:
        """alpha and beta of the search."""
        if self.alpha is not None and self.beta is not None:
            return self.alpha, self.beta
        tuned = self._tuned(run)
        fits = tuned is not None and all(
            _same_file(tuned.get(name), path) for name, path in (("lm", self.lm), ("lexicon", self.lexicon))
        )
        if self.lm is None:  # nothing for alpha to weigh
            return 0.0, tuned["beta"] if tuned is not None and fits and self.beta is None else self.beta or 0.0
        if not os.path.exists(self.lm):
            raise DataError(f"{os.fspath(self.lm)}: no such file or directory")
        if tuned is None or not fits:
            raise self._not_tuned(run, "beam", tuned, self.lm)
        return _given_or_tuned(self.alpha, self.beta, tuned)

    def rescore_weights(self, run: Run) -> tuple[float, float]:
        """alpha and beta of rescoring."""
        assert self.rescore is not None
        if self.rescore_alpha is not None and self.rescore_beta is not None:
            return self.rescore_alpha, self.rescore_beta
        tuned = (self._tuned(run) or {}).get("rescore")
        if tuned is None or not _same_file(tuned.get("lm"), self.rescore):
            raise self._not_tuned(run, "rescore", tuned, self.rescore)
        return _given_or_tuned(self.rescore_alpha, self.rescore_beta, tuned)

    def _tuned(self, run: Run) -> dict[str, Any] | None:
        return read_tuned(run.folder).get("alone" if self.lm is None else "beam")

    def _not_tuned(self, run: Run, method: str, tuned: Mapping[str, Any] | None, lm: PathLike) -> DataError:
        what, use = "are not tuned", os.fspath(lm)
        if tuned is not None:
            what = f"were tuned with {tuned.get('lm') or 'no language model'}"
            what += f" and the lexicon {tuned['lexicon']}" if tuned.get("lexicon") else ""
        if method == "beam" and self.lexicon is not None:
            use += f" and the lexicon {os.fspath(self.lexicon)}"
        return DataError(
            f"{run.folder}: the weights of {method} {what}: run `starseq tune` with {use}, or give alpha and beta"
        )


@contextmanager
def reading(run: Run, search: Search, where: Where) -> Iterator[Callable[[str, Tensor], Callable[[], Readings]]]:
    """Gives ``begin(id, log_probs)``, which begins to read an utterance, (T, V), and returns what waits for the `Readings`.

    Entered before the model runs: a worker is a copy of this process.
    """
    if not search.asked:
        yield lambda id, log_probs: lambda: {"greedy": greedily(run, log_probs)}
        return
    with work_ahead(search.on(run).nbest, where.workers) as submit:
        weights = (0.0, 0.0) if search.rescore is None else search.rescore_weights(run)
        scorer = search.scorer(run, where.torch_device)  # here: the workers need none

        def begin(id: str, log_probs: Tensor) -> Callable[[], Readings]:
            searched = submit(id, log_probs.numpy())

            def read() -> Readings:
                nbest = searched()
                found = {"greedy": greedily(run, log_probs), "beam": best(nbest)}
                if scorer is not None:
                    found["rescored"] = best(next(rescore([nbest], scorer, *weights)))
                return found

            return read

        yield begin


def greedily(run: Run, log_probs: Tensor) -> Hypothesis:
    """The best token of each frame, collapsed: no score is computed."""
    (tokens,) = greedy(log_probs[None], [len(log_probs)], merge_repeats=run.merges_repeats)
    return Hypothesis(run.tokeniser.decode(tokens), tuple(tokens), 0.0, 0.0, len(tokens))


def read_tuned(folder: PathLike) -> dict[str, dict[str, Any]]:
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


def _given_or_tuned(alpha: float | None, beta: float | None, tuned: Mapping[str, Any]) -> tuple[float, float]:
    return tuned["alpha"] if alpha is None else alpha, tuned["beta"] if beta is None else beta


def _same_file(first: str | None, second: PathLike | None) -> bool:
    if first is None or second is None:
        return first is second
    return os.path.realpath(first) == os.path.realpath(second)
