"""Beam search with an n-gram language model, on flashlight-text (KenLM inside), for collapses that merge repeats and that do not.

The search looks for the texts y with the largest

    log P(y|x) + alpha log P_LM(y) + beta |y|,        P(y|x) = sum over the alignments that collapse to y.

Three forms: tokens that are words, scored by a word LM; tokens that are characters, scored by a character LM; characters held
to the words of a lexicon, scored by a word LM. flashlight's LM state is the whole history, so hypotheses merge only when they
are the same text, and merging adds their probabilities: with an unlimited beam the result is exact. docs/decoding.md says more.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starseq.data.errors import DataError
from starseq.decode.lexicon import Lexicon
from starseq.decode.nbest import Hypothesis, NBest
from starseq.decode.workers import work_ahead
from starseq.loss import ctc_loss, selfless_ctc_loss
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import BLANK, SPACE

__all__ = ["Beam", "BeamSearch", "LanguageModel", "log_likelihoods", "search_all"]

IMPOSSIBLE = np.float32(-1e30)
"""In place of -inf, which flashlight turns into NaN where two hypotheses of it merge. No sum of real scores comes near."""

_LARGEST = 2**31 - 1
_LN10 = math.log(10)


@dataclass(frozen=True)
class Beam:
    """How much of the search space is looked at.

    size: hypotheses kept after each frame. tokens: the best tokens of each frame that extend them. threshold: how far, in
    natural logarithms, a hypothesis may lie behind the best one; token_threshold: a token behind the best of its frame (not
    with a lexicon). nbest: texts returned. log_add: add the alignments of a text (False: take the best one). all_alignments:
    without a lexicon, compute log P(y|x) of every text of the list again, from alignments that fell out of the beam as well.

    >>> Beam.unlimited().size > 10**9
    True
    """

    size: int = 500
    tokens: int = 50
    threshold: float = 50.0
    token_threshold: float = 16.0
    nbest: int = 512
    log_add: bool = True
    all_alignments: bool = True

    def __post_init__(self) -> None:
        for name in ("size", "tokens", "nbest"):
            if getattr(self, name) < 1:
                raise ValueError(f"beam: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("threshold", "token_threshold"):
            if not getattr(self, name) > 0:
                raise ValueError(f"beam: {name} must be above 0, not {getattr(self, name)}")

    @classmethod
    def unlimited(cls) -> Beam:
        """Looks at everything: exact, and only for small cases."""
        return cls(_LARGEST, _LARGEST, math.inf, math.inf, _LARGEST)


class LanguageModel:
    """An n-gram model, ARPA (gzip too) or KenLM's binary, seen through the words that the search emits.

    `unknown` are the words that it lacks: they count as ``<unk>``. A `DataError` where the file is no language model, or
    knows none of the words. Every process that unpickles it loads the file once (KenLM maps its binary format into memory).
    """

    def __init__(self, path: str | os.PathLike[str], words: Sequence[str]) -> None:
        from flashlight.lib.text.decoder.kenlm import KenLM
        from flashlight.lib.text.dictionary import Dictionary

        self.path, self.words = os.fspath(path), tuple(words)
        open(self.path, "rb").close()  # the system's own sentence where the file is missing or may not be read
        dictionary = Dictionary()
        for word in self.words:
            dictionary.add_entry(word)
        # After the words, one that no model can know: what scores like it is unknown.
        dictionary.add_entry("\x1f")
        if dictionary.index_size() != len(self.words) + 1:
            raise ValueError(f"{self.path}: a word of the search occurs twice")
        try:
            with _quiet():
                self.native = KenLM(self.path, dictionary)
        except (RuntimeError, UnicodeDecodeError) as error:  # what is wrong may be quoted, and be no text
            reason = str(error).strip().splitlines()[-1]
            raise DataError(f"{self.path}: not a language model that can be read: {reason}") from None
        start = self.native.start(True)
        scores = [self.native.score(start, index)[1] for index in range(len(self.words) + 1)]
        self.log_unigrams = [score * _LN10 for score in scores[:-1]]
        known = {word: score != scores[-1] for word, score in zip(self.words, scores, strict=False) if word != BLANK}
        self.unknown = tuple(word for word in known if not known[word])
        there = sum(known.values())
        of_words = not known.get(SPACE, True) and 5 * there < len(known)  # some words are characters, too
        if there == 0 or of_words:
            sample = ", ".join(map(repr, self.unknown[:3]))
            raise DataError(
                f"{self.path}: a language model of another vocabulary: it knows {there or 'none'} of the {len(known):,} tokens or "
                f"words of this search ({sample}, ...)" + (" and no space" if of_words else "")
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return LanguageModel, (self.path, self.words)


class BeamSearch:
    """Finds the n best texts of one utterance.

    Args:
        tokeniser: of the acoustic model: V tokens, the blank first, and how they make text.
        merge_repeats: whether the criterion's collapse merges repeats (CTC, STC) or not (published STC, selfless CTC).
        lm: path of an n-gram model over the tokens (a space is ``<space>``), with a `lexicon` over its words.
        lexicon: holds the text to these words; `beta` then counts words, otherwise tokens.
        alpha, beta: weights of log P_LM(y), natural logarithm with the end of the sentence, and of |y|.
        beam: how much to look at.

    With a lexicon P(y|x) is the sum over the alignments whose text splits into the words y, however many spaces lie between
    and around them, of those that the beam kept.

    >>> from starseq.text.vocabulary import Vocabulary
    >>> search = BeamSearch(Tokeniser(Vocabulary(["a", "b"]), "char"), merge_repeats=False)
    >>> log_probs = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.5, 0.3]]).log()
    >>> [(hyp.text, round(math.exp(hyp.am), 2)) for hyp in search(log_probs)[:3]]
    [('aa', 0.3), ('ab', 0.18), ('a', 0.17)]
    >>> merging = BeamSearch(Tokeniser(Vocabulary(["a", "b"]), "char"), merge_repeats=True)
    >>> [(hyp.text, round(math.exp(hyp.am), 2)) for hyp in merging(log_probs)[:2]]
    [('a', 0.47), ('ab', 0.18)]
    """

    def __init__(
        self,
        tokeniser: Tokeniser,
        *,
        merge_repeats: bool,
        lm: str | os.PathLike[str] | LanguageModel | None = None,
        lexicon: Lexicon | None = None,
        alpha: float = 0.0,
        beta: float = 0.0,
        beam: Beam = Beam(),
    ) -> None:
        if not (math.isfinite(alpha) and math.isfinite(beta)):
            raise ValueError(f"alpha and beta must be finite, not {alpha} and {beta}")
        if lm is None and alpha:
            raise ValueError(f"alpha: a weight of {alpha:g} needs a language model, and none was given")
        if lexicon is not None and tokeniser.unit != "char":
            raise ValueError("lexicon: words are spelled by characters, and the tokens of this model are words")
        self.tokeniser, self.merge_repeats, self.lexicon = tokeniser, merge_repeats, lexicon
        self.alpha, self.beta, self.beam = alpha, beta, beam
        if lm is None or isinstance(lm, LanguageModel):
            self.lm = lm
        else:
            tokens = [SPACE if token == " " else token for token in tokeniser.vocabulary]
            self.lm = LanguageModel(lm, tokens if lexicon is None else lexicon.words)
        self._trie = None if lexicon is None else _trie(lexicon, tokeniser, self.lm)
        self._zero = np.zeros(1, dtype=np.float32)
        self._decoder = self._native(beam)

    def at(self, alpha: float, beta: float, beam: Beam | None = None) -> BeamSearch:
        """The same search with other weights; the language model and the lexicon are shared."""
        other = BeamSearch(
            self.tokeniser, merge_repeats=self.merge_repeats, lm=self.lm, alpha=alpha, beta=beta, beam=beam or self.beam
        )
        other.lexicon, other._trie = self.lexicon, self._trie
        other._decoder = other._native(other.beam)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {"merge_repeats": self.merge_repeats, "lm": self.lm, "lexicon": self.lexicon}
        weights = {"alpha": self.alpha, "beta": self.beta, "beam": self.beam}
        return _rebuilt, (self.tokeniser, settings | weights)

    def __call__(self, log_probs: Tensor, id: str = "") -> list[Hypothesis]:
        """The best texts for log_probs (T, V), best first; none where some frame has no probability at all.

        A `DataError` names the utterance `id` where log_probs has another V, or holds NaN or +inf.
        """
        scores = self._checked(log_probs, id)
        highest = scores.max(axis=1, initial=-math.inf)
        if np.isnan(highest).any() or (highest == math.inf).any():
            frame = int(np.flatnonzero(~(highest < math.inf))[0])
            raise DataError(f"utterance {id!r}: its log-probabilities hold NaN or inf, first in frame {frame}")
        if (highest == -math.inf).any():
            return []
        hyps = self._words(scores) if self.lexicon is not None else self._tokens(scores, highest)
        distinct: dict[str, Hypothesis] = {}
        for hyp in sorted(hyps, key=self._rank):
            distinct.setdefault(hyp.text, hyp)
        return list(distinct.values())[: self.beam.nbest]

    def nbest(self, id: str, log_probs: NDArray[np.float32]) -> NBest:
        """The same as a list with its utterance; log_probs is an array, which crosses to other processes by itself."""
        return NBest(id, tuple(self(torch.from_numpy(log_probs), id)))

    def _rank(self, hyp: Hypothesis) -> tuple[float, str]:
        return -hyp.score(self.alpha, self.beta), hyp.text

    def _checked(self, log_probs: Tensor, id: str) -> NDArray[np.float32]:
        if log_probs.dim() != 2 or log_probs.shape[1] != len(self.tokeniser.vocabulary):
            raise DataError(
                f"utterance {id!r}: log-probabilities of shape {tuple(log_probs.shape)}, where the vocabulary asks for "
                f"(T, {len(self.tokeniser.vocabulary)})"
            )
        return np.ascontiguousarray(log_probs.detach().to("cpu", torch.float32).numpy())

    # Tokens without a lexicon.

    def _tokens(self, scores: NDArray[np.float32], highest: NDArray[np.float32]) -> list[Hypothesis]:
        """Runs flashlight frame by frame: a frame where nothing but the blank is plausible is a vocabulary of one token.

        Where repeats do not merge, such a frame, of probability 1, follows every other: it keeps a token from being taken
        for the same token going on. Every token is then new in its frame, so beta goes into the frames; where repeats merge,
        flashlight has no place for it, and beta orders the finished list alone.
        """
        floor = np.maximum(highest - self.beam.token_threshold, IMPOSSIBLE / 2)
        plausible = scores >= floor[:, None]
        bonus = np.float32(0.0 if self.merge_repeats else self.beta)
        frames = np.where(plausible, scores + bonus, IMPOSSIBLE)
        frames[:, 0] = np.where(plausible[:, 0], scores[:, 0], IMPOSSIBLE)
        blank_alone = ~plausible[:, 1:].any(axis=1)

        decoder = self._decoder
        decoder.decode_begin()
        address, row = frames.ctypes.data, frames.strides[0]
        zero = self._zero.ctypes.data
        blanks = np.zeros(1, dtype=np.float32)
        t, frame_count, vocabulary = 0, *frames.shape
        edges = np.flatnonzero(np.diff(blank_alone)) + 1
        for end in (*edges.tolist(), frame_count) if frame_count else ():
            if blank_alone[t]:  # each hypothesis takes the same blanks, so their sum is as good
                blanks[0] = frames[t:end, 0].sum(dtype=np.float64)
                decoder.decode_step(blanks.ctypes.data, 1, 1)
            elif self.merge_repeats:
                decoder.decode_step(address + t * row, end - t, vocabulary)
            else:
                for here in range(t, end):
                    decoder.decode_step(address + here * row, 1, vocabulary)
                    decoder.decode_step(zero, 1, 1)
            t = end
        decoder.decode_end()

        found = []
        for result in decoder.get_all_final_hypothesis():
            if result.score > IMPOSSIBLE / 2:
                path = np.array(result.tokens)
                tokens = tuple(path[1:][(path[1:] > 0) & (path[1:] != path[:-1])].tolist())
                lm = result.lmScore * _LN10 if self.lm is not None else 0.0
                am = result.score - self.alpha * lm - float(bonus) * len(tokens)
                found.append(Hypothesis(self.tokeniser.decode(tokens), tokens, am, lm, len(tokens)))
        if not (self.beam.log_add and self.beam.all_alignments):
            return found
        exact = log_likelihoods(torch.from_numpy(scores), [hyp.tokens for hyp in found], self.merge_repeats)
        return [hyp._replace(am=am) for hyp, am in zip(found, exact.tolist(), strict=True)]

    # Characters with a lexicon.

    def _words(self, scores: NDArray[np.float32]) -> list[Hypothesis]:
        """Runs flashlight over all frames and one more that is a space for sure: it ends the last word.

        Between words flashlight takes any number of spaces, and a word ends with one, so that no letter has to be held
        after its word. A narrow beam may hold no complete word at the end: then it looks again with a wider one.
        """
        vocabulary = self.tokeniser.vocabulary
        space = vocabulary.index(" ")
        step = 1 if self.merge_repeats else 2
        frames = np.full((step * len(scores) + 1, len(vocabulary)), IMPOSSIBLE)
        np.maximum(scores, IMPOSSIBLE, out=frames[:-1:step])
        if not self.merge_repeats:
            frames[1:-1:2, 0] = 0
        frames[-1, space] = 0
        found: list[Hypothesis] = []
        for wider in (1, 4, 16):
            beam = self.beam
            if wider > 1:
                size, tokens = (min(wider * number, _LARGEST) for number in (beam.size, beam.tokens))
                beam = replace(beam, size=size, tokens=tokens, threshold=wider * beam.threshold)
            decoder = self._decoder if wider == 1 else self._native(beam)
            for result in decoder.decode(frames.ctypes.data, *frames.shape):
                if result.score > IMPOSSIBLE / 2:
                    found.append(self._of_words([word for word in result.words if word >= 0], result))
            if found:
                break
        return found

    def _of_words(self, labels: Sequence[int], result: Any) -> Hypothesis:
        assert self.lexicon is not None
        space = self.tokeniser.vocabulary.index(" ")
        tokens: list[int] = []
        for label in labels:
            tokens += [space, *self.lexicon.spellings[label][0]] if tokens else self.lexicon.spellings[label][0]
        lm = result.lmScore * _LN10 if self.lm is not None else 0.0
        am = result.score - self.alpha * lm - self.beta * len(labels)
        text = " ".join(self.lexicon.words[label] for label in labels)
        return Hypothesis(text, tuple(tokens), am, lm, len(labels))

    def _native(self, beam: Beam) -> Any:
        """flashlight's decoder; KenLM answers in log10, which the weight makes good."""
        from flashlight.lib.text import decoder as fl

        lm = fl.ZeroLM() if self.lm is None else self.lm.native
        threshold = min(beam.threshold, 1e20)  # below IMPOSSIBLE, so that what is impossible goes
        tokens = min(beam.tokens, len(self.tokeniser.vocabulary))
        weight = self.alpha * _LN10
        if self.lexicon is None or self._trie is None:
            free = fl.LexiconFreeDecoderOptions(
                beam.size, tokens, threshold, weight, 0.0, beam.log_add, fl.CriterionType.CTC
            )
            # -1 as silence is no token: nothing that a text may begin with counts as going on from before the start.
            return fl.LexiconFreeDecoder(free, lm, -1, 0, [])
        options = fl.LexiconDecoderOptions(
            beam.size, tokens, threshold, weight, self.beta, -math.inf, 0.0, beam.log_add, fl.CriterionType.CTC
        )
        space = self.tokeniser.vocabulary.index(" ")
        return fl.LexiconDecoder(options, self._trie, lm, space, 0, -1, [], False)


def _rebuilt(tokeniser: Tokeniser, settings: dict[str, Any]) -> BeamSearch:
    return BeamSearch(tokeniser, **settings)


def _trie(lexicon: Lexicon, tokeniser: Tokeniser, lm: LanguageModel | None) -> Any:
    """The words as a tree of tokens. Inner nodes carry the best unigram below them, so that the LM guides within words."""
    from flashlight.lib.text import decoder as fl

    space = tokeniser.vocabulary.index(" ")
    trie = fl.Trie(len(tokeniser.vocabulary), space)
    for label, spellings in enumerate(lexicon.spellings):
        for spelling in spellings:
            trie.insert([*spelling, space], label, lm.log_unigrams[label] / _LN10 if lm is not None else 0.0)
    trie.smear(fl.SmearingMode.MAX)
    return trie


def log_likelihoods(log_probs: Tensor, labels: Sequence[Sequence[int]], merge_repeats: bool) -> Tensor:
    """log P(y|x) of N label sequences for one utterance (T, V), each summed over all of its alignments: (N,).

    Only the columns that occur in some sequence are looked at, so V may be large.

    >>> log_probs = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.5, 0.3]]).log()
    >>> log_likelihoods(log_probs, [[1], [1, 1]], merge_repeats=True).exp()
    tensor([0.4700, 0.0000])
    """
    if not labels:
        return log_probs.new_empty(0)
    used = sorted({label for sequence in labels for label in sequence})
    place = {label: index for index, label in enumerate(used, start=1)}
    columns = log_probs[:, [0, *used]]
    lengths = torch.tensor([len(sequence) for sequence in labels])
    targets = torch.zeros(len(labels), max(1, int(lengths.max())), dtype=torch.int64)
    for row, sequence in zip(targets, labels, strict=True):
        row[: len(sequence)] = torch.tensor([place[label] for label in sequence], dtype=torch.int64)
    loss = ctc_loss if merge_repeats else selfless_ctc_loss
    frames = torch.full((len(labels),), len(columns))
    batch = columns.expand(len(labels), *columns.shape)
    with torch.no_grad():
        return -loss(batch, targets, frames, lengths, reduction="none", batch_first=True, normalized=False)


def search_all(
    search: BeamSearch,
    emissions: Iterable[tuple[str, Tensor]],
    *,
    workers: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[NBest]:
    """The n-best lists of many utterances (id, log_probs (T, V)), in their order, on `workers` processes (0: this one).

    Only a few utterances a worker are in flight, so `emissions` may be a generator of any length.

    >>> from starseq.text.vocabulary import Vocabulary
    >>> search = BeamSearch(Tokeniser(Vocabulary(["a"]), "char"), merge_repeats=True)
    >>> [nbest.hyps[0].text for nbest in search_all(search, [("x", torch.tensor([[0.1, 0.9]]).log())])]
    ['a']
    """
    done = 0
    waiting: deque[Callable[[], NBest]] = deque()
    with work_ahead(search.nbest, workers) as submit:
        for id, log_probs in emissions:
            waiting.append(submit(id, log_probs.detach().to("cpu", torch.float32).numpy()))
            if len(waiting) > 2 * workers:
                yield waiting.popleft()()
                done += 1
                progress(done)
        while waiting:
            yield waiting.popleft()()
            done += 1
            progress(done)


@contextmanager
def _quiet() -> Iterator[None]:
    """KenLM draws a bar on the error output when it reads an ARPA file, straight from C++; here it goes nowhere."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
