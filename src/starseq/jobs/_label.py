"""How `starseq pseudo` labels one utterance: it is read by the method that was asked for, and what is read becomes a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from numpy.typing import NDArray

from starseq import runs
from starseq.data.files import hash_of
from starseq.data.manifest import Row
from starseq.decode.beam import Beam, BeamSearch
from starseq.decode.complete import CompletedToken, check_search, complete, complete_together
from starseq.decode.confidence import Judge
from starseq.decode.greedy import greedy
from starseq.decode.nbest import Hypothesis, NBest, best
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.decode.rescore import rescore as rescored
from starseq.jobs._fill import Filled, fill, gaps_in, listed, no_gap, unchanged
from starseq.jobs._origins import gap_marks_of
from starseq.jobs._search import Search
from starseq.jobs._stream import Record
from starseq.jobs._where import PathLike
from starseq.jobs.evaluate import Scores
from starseq.lm import Scorer
from starseq.text.gaps import has_gap, parse, split_gaps
from starseq.text.known import Known, known_text
from starseq.text.tokeniser import Tokeniser

__all__ = ["KINDS", "Candidate", "Kind", "Labeller", "Method", "method_of"]

Kind = Literal["plain", "keep-known", "confident"]
KINDS: tuple[Kind, ...] = get_args(Kind)

BEAM = 100
"""prefixes that the search for a completion keeps after each frame"""


# --- reading: transcripts of an utterance, best first -----------------------------------------------------------------


class Candidate(NamedTuple):
    """A transcript, and which of its tokens are labels that were known."""

    hyp: Hypothesis
    known: tuple[bool, ...]


Array = NDArray[Any]
_Read = Callable[[str, list[Array], Array, Array], list[Candidate]]
"""(id, log_probs (T, V) of each run, labels (U,), open gaps (U + 1,)) -> candidates, best first; runs in other processes"""


class Method(NamedTuple):
    settings: dict[str, Any]
    """the name of the method, and all that decides what it reads"""
    weights: tuple[float, float]
    """of rescoring"""
    make: Callable[[], _Read]


@dataclass(frozen=True)
class _Greedy:
    tokeniser: Tokeniser
    merge_repeats: bool

    def __call__(self, id: str, log_probs: list[Array], labels: Array, gaps: Array) -> list[Candidate]:
        frames = torch.from_numpy(log_probs[0])
        (tokens,) = greedy(frames[None], torch.tensor([len(frames)]), merge_repeats=self.merge_repeats)
        return [_unknown(Hypothesis(self.tokeniser.decode(tokens), tuple(tokens), 0.0, 0.0, len(tokens)))]


@dataclass(frozen=True)
class _Search:
    search: BeamSearch

    def __call__(self, id: str, log_probs: list[Array], labels: Array, gaps: Array) -> list[Candidate]:
        return list(map(_unknown, self.search.nbest(id, log_probs[0]).hyps))


@dataclass(frozen=True)
class _Completion:
    tokeniser: Tokeniser
    lm: NGramAutomaton | None
    merges: Sequence[bool]
    """whether repeats merge, for each run"""
    settings: Mapping[str, Any]

    def __call__(self, id: str, log_probs: list[Array], labels: Array, gaps: Array) -> list[Candidate]:
        frames, known, is_open = [torch.from_numpy(one) for one in log_probs], *map(torch.from_numpy, (labels, gaps))
        search: dict[str, Any] = {**self.settings, "lm": self.lm, "normalized": False}
        if len(frames) > 1:
            found = complete_together(frames, known, is_open, merge_repeats=self.merges, **search)
        else:
            found = complete(frames[0], known, is_open, merge_repeats=self.merges[0], judged=False, **search)
        return [
            Candidate(
                Hypothesis(self.tokeniser.decode(one.labels), one.labels, one.am, one.lm, len(one.labels)),
                tuple(token.known for token in one.tokens),
            )
            for one in found
        ]


def _unknown(hyp: Hypothesis) -> Candidate:
    return Candidate(hyp, (False,) * len(hyp.tokens))


def method_of(several: Sequence[runs.Run], search: Search, kind: Kind) -> Method:
    """The method that the options ask for, with its weights: those given, else those tuned for the first run."""
    run, merges = several[0], [run.merges_repeats for run in several]
    plain = kind == "plain"
    if plain and not search.asked:
        return Method({"method": "greedy"}, (0.0, 0.0), lambda: _Greedy(run.tokeniser, merges[0]))
    if not plain and search.lexicon is not None:
        raise ValueError(f"lexicon: a transcript of the kind {kind!r} is held to the known labels, not to a lexicon")
    alpha, beta = search.weights(run)
    size = search.beam if search.beam is not None else search.limits.size if plain else BEAM
    nbest = 1 if search.rescore is None else min(search.limits.nbest, size)
    settings: dict[str, Any] = {
        "method": "beam" if plain else "completion", "beam": size, "beam_tokens": search.beam_tokens, "alpha": alpha, "beta": beta,
        "lm": _named(search.lm), "lexicon": _named(search.lexicon),
    }  # fmt: skip
    weights = (0.0, 0.0)
    if search.rescore is not None:
        weights = search.rescore_weights(run)
        rescore = {"lm": _named(search.rescore), "alpha": weights[0], "beta": weights[1], "nbest": nbest}
        settings["rescore"] = rescore
    settings = {name: value for name, value in settings.items() if value is not None}

    def beam() -> _Read:
        limits = Beam(size=size, tokens=search.beam_tokens, nbest=nbest)
        return _Search(search.on(run, (alpha, beta), limits))

    def completion() -> _Read:
        tokens = run.tokeniser.vocabulary.tokens
        lm = None if search.lm is None else NGramAutomaton(search.lm, tokens)
        check_search(size, 0.0, search.beam_tokens, nbest, lm, alpha, beta, len(tokens))
        limits = {"beam": size, "tokens_per_frame": search.beam_tokens, "nbest": nbest, "alpha": alpha, "beta": beta}
        return _Completion(run.tokeniser, lm, merges, limits)

    return Method(settings, weights, beam if plain else completion)


def _named(path: PathLike | None) -> str | None:
    """A file's name and hash, for provenance."""
    return None if path is None else f"{Path(path).name} {hash_of(path)[:16]}"


# --- a row ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labeller:
    """Makes the record of a row: the row itself, and what the summary counts."""

    several: Sequence[runs.Run]
    kind: Kind
    threshold: float
    source: Mapping[str, Any]
    scorer: Scorer | None
    weights: tuple[float, float]

    @property
    def run(self) -> runs.Run:
        return self.several[0]

    def known(self, row: Row) -> Known:
        """What is known of a row: nothing, if it is to be read as if it had no text."""
        return (
            known_text(self.run.tokeniser, "")
            if self.kind == "plain"
            else known_text(self.run.tokeniser, row.text, marked=row.marked)
        )

    def __call__(self, emissions: Sequence[runs.Emission], candidates: Sequence[Candidate]) -> Record:
        """`candidates` are transcripts, best first; none for a row in which nothing is missing."""
        emission = emissions[0]
        known = self.known(emission.row)
        row, filled = emission.row, Filled(unchanged(emission.row).text, [], [], [], 0)
        left = no_gap(row)
        if not known.complete:
            winner = self._winner(emission.id, candidates)
            sure = self._confidence(emissions, winner)
            tokens = [
                CompletedToken(token, 0, 0, is_known, share)
                for token, is_known, share in zip(winner.hyp.tokens, winner.known, sure, strict=True)
            ]
            threshold = self.threshold if self.kind == "confident" else 0.0
            marks = None if self.kind == "plain" else gap_marks_of(row)
            filled = fill(known, tokens, threshold=threshold, whole=False, gap_marks=marks)
            left = [] if self.kind == "plain" else listed(row, known, filled)
        if self.kind == "plain" and not filled.added:
            raise ValueError("nothing was read")
        unwritten = {one["position"] for one in filled.left if "guess" in one}
        refused = len(unwritten | self._in_words(filled.text))
        row = row.replace(
            text=filled.text, gaps="marked", text_partial=row.text, confidence=round(_mean(filled.labels), 4),
            added=filled.added, refused=refused, source=self.source,
        )  # fmt: skip
        if "gap_marks" in row.fields:
            row = row.replace(gap_marks=filled.gap_marks or [])
        return {
            "row": row.fields,
            "left": left,
            "labels": {
                "known": known.count, "added": len(filled.labels), "taken_out": filled.taken_out,
                "outside_vocabulary": len(known.unknown),
            },
            "gaps": {"filled": len(filled.added), "left": gaps_in(row.text), "untouched": not filled.added},
            "scores": self._scores(emission, row.text),
        }  # fmt: skip

    def kept(self, row: Row) -> Record:
        """The record of a row that failed: it comes out as it was."""
        return {
            "row": unchanged(row).fields, "left": [], "labels": {"known": self.known(row).count},
            "gaps": {"left": gaps_in(unchanged(row).text)}, "scores": {},
        }  # fmt: skip

    def _confidence(self, emissions: Sequence[runs.Emission], winner: Candidate) -> list[float]:
        """Of each token, the mean over the runs."""
        asked = [not known for known in winner.known]
        each = [
            Judge(emission.log_probs, merge_repeats=run.merges_repeats)(winner.hyp.tokens, asked).confidence
            for run, emission in zip(self.several, emissions, strict=True)
        ]  # fmt: skip
        return [sum(shares) / len(shares) for shares in zip(*each, strict=True)]

    def _in_words(self, text: str) -> set[int]:
        """The positions of gaps that touch a word, where labels are words: part of it is missing."""
        found, position, segments = set[int](), 0, split_gaps(text)
        for before, after in zip(segments, segments[1:], strict=False):
            position += len(before)
            if self.run.tokeniser.unit == "word" and (before[-1:].isalnum() or after[:1].isalnum()):
                found.add(position)
            position += 1
        return found

    def _winner(self, id: str, candidates: Sequence[Candidate]) -> Candidate:
        """The first, or the first after rescoring."""
        nbest = NBest(id, tuple(candidate.hyp for candidate in candidates))
        if self.scorer is None or len(candidates) < 2:
            best(nbest)
            return candidates[0]
        (reordered,) = rescored([nbest], self.scorer, *self.weights)
        tokens = best(reordered).tokens
        return next(candidate for candidate in candidates if candidate.hyp.tokens == tokens)

    def _scores(self, emission: runs.Emission, text: str) -> dict[str, Any]:
        """Of the labels before and after, where the row has its complete text."""
        full = emission.row.get("text_full")
        if not full or has_gap(full):
            return {}
        normaliser = self.run.tokeniser.normaliser
        texts = {"partial": emission.row.text, "pseudo": text}
        if normaliser is not None:
            texts = {name: normaliser(text) for name, text in texts.items()}
        return {name: Scores.of([emission.reference], [self._literal(text)]).to_dict() for name, text in texts.items()}

    def _literal(self, text: str) -> str:
        """The labels of a text without its marks."""
        unit = self.run.tokeniser.unit
        return (" " if unit == "word" else "").join(parse(text, unit).labels)


def _mean(confidence: Sequence[float]) -> float:
    """The geometric mean; 1 of none.

    >>> round(_mean([0.5, 1.0]), 4), _mean([]), _mean([0.0, 1.0])
    (0.7071, 1.0, 0.0)
    """
    if not all(confidence):
        return 0.0
    return math.exp(math.fsum(map(math.log, confidence)) / len(confidence)) if confidence else 1.0
