"""n-best files: round trips, jobs that were stopped, files that are not n-best lists; and emissions on disk."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from starseq.data.errors import DataError
from starseq.decode.emissions_cache import EmissionCache
from starseq.decode.nbest import Hypothesis, NBest, NBestWriter, best, merge, read_nbest, write_nbest

LISTS = [
    NBest("a", (Hypothesis("größer als", (1, 2), -1.25, -7.5, 2), Hypothesis("", (), -3.0, -1.0, 0))),
    NBest("b", ()),
    NBest("c", (Hypothesis("x", (3,), -0.5, 0.0, 1),)),
]


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    write_nbest(path, LISTS)
    assert list(read_nbest(path)) == LISTS
    first = json.loads(path.read_text().splitlines()[0])
    assert list(first) == ["id", "hyps"]
    assert list(first["hyps"][0]) == ["text", "tokens", "am", "lm", "length"]


def test_nothing_that_json_lacks_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        write_nbest(tmp_path / "n.jsonl", [NBest("a", (Hypothesis("x", (1,), -math.inf, 0.0, 1),))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    ["[]", '{"id": "a"}', '{"id": 3, "hyps": []}', '{"id": "a", "hyps": [{"text": "x"}]}', "{",
     '{"id": "a", "hyps": [{"text": "x", "tokens": [1], "am": NaN, "lm": 0, "length": 1}]}',
     '{"id": "a", "hyps": [{"text": "x", "tokens": "?", "am": 0, "lm": 0, "length": 1}]}'],
)  # fmt: skip
def test_a_line_that_is_no_list_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "n.jsonl"
    write_nbest(path, LISTS[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"n\.jsonl, line 2: not an n-best list like"):
        list(read_nbest(path))


def test_an_empty_list_has_no_best() -> None:
    assert best(LISTS[0]).text == "größer als"
    with pytest.raises(DataError, match="'b' has an empty n-best list"):
        best(LISTS[1])


def test_merged_lists_keep_the_fuller_score() -> None:
    low, high, other = (Hypothesis(text, (1,), am, -1.0, 1) for text, am in (("x", -3.0), ("x", -2.0), ("y", -9.0)))
    for pair in (((low, other), (high,)), ((high,), (other, low))):
        together = merge(NBest("u", pair[0]), NBest("u", pair[1]))
        assert set(together.hyps) == {high, other}


def test_a_stopped_job_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out" / "n.jsonl"
    with suppress(KeyboardInterrupt), NBestWriter(path, {"beam": 5}) as writer:
        writer.add(LISTS[0])
        writer.add(LISTS[1])
        raise KeyboardInterrupt
    assert not path.exists()
    partial = path.with_name(".n.jsonl.partial")
    partial.write_bytes(partial.read_bytes() + b'{"id": "c", "hyps": [{"te')  # the power failed
    with NBestWriter(path, {"beam": 5}) as writer:
        assert writer.done == {"a", "b"}
        writer.add(LISTS[2])
        writer.finish()
    assert list(read_nbest(path)) == LISTS
    assert [entry.name for entry in path.parent.iterdir()] == ["n.jsonl"]


def test_a_job_with_other_settings_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    with NBestWriter(path, {"beam": 5}) as writer:
        writer.add(LISTS[0])
    with NBestWriter(path, {"beam": 6}) as writer:
        assert writer.done == set()
        writer.add(LISTS[2])
        writer.finish()
    assert list(read_nbest(path)) == LISTS[2:]


def test_lists_are_on_the_disk_while_the_job_runs(tmp_path: Path) -> None:
    writer = NBestWriter(tmp_path / "n.jsonl", flush_every=2)
    for nbest in LISTS[:2]:
        writer.add(nbest)
    assert len((tmp_path / ".n.jsonl.partial").read_bytes().splitlines()) == 2
    writer.close()


def _log_probs(T: int, V: int, seed: int) -> torch.Tensor:
    return torch.randn(T, V, generator=torch.Generator().manual_seed(seed)).log_softmax(1)


def test_emissions_come_back_in_order_from_several_shards(tmp_path: Path) -> None:
    rows = [(f"u{n}", _log_probs(n, 5, n), f"text {n}") for n in range(6)]  # one without any frame
    EmissionCache.write(tmp_path, iter(rows), key="k", shard_bytes=40)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    cache = EmissionCache.open(tmp_path, "k")
    assert cache is not None
    assert cache.references == [f"text {n}" for n in range(6)]
    for (id, log_probs), (expected_id, expected, _) in zip(cache, rows, strict=True):
        assert id == expected_id
        assert torch.equal(log_probs, expected)
    assert [id for id, _ in cache.but({"u1", "u4"})] == ["u0", "u2", "u3", "u5"]


def test_the_best_tokens_and_the_blank_are_kept(tmp_path: Path) -> None:
    log_probs = _log_probs(40, 30, 0)
    cache = EmissionCache.write(tmp_path, [("u", log_probs, "")], key="k", keep=4)
    ((_, found),) = list(cache)
    kept = found > -math.inf
    assert kept[:, 0].all()
    assert (kept.sum(1) == 4).all()
    assert torch.equal(found[kept], log_probs[kept])
    best3 = log_probs.topk(3, dim=1).indices
    assert kept.gather(1, best3).all()


def test_a_cache_that_was_not_finished_is_none(tmp_path: Path) -> None:
    def rows():
        yield "u", _log_probs(3, 4, 0), ""
        raise OSError("the disk is full")

    EmissionCache.write(tmp_path, [("u", _log_probs(3, 4, 0), "")], key="k")
    with pytest.raises(OSError, match="full"):
        EmissionCache.write(tmp_path, rows(), key="k", shard_bytes=1)
    assert EmissionCache.open(tmp_path, "k") is None
    assert EmissionCache.open(tmp_path / "nowhere", "k") is None


def test_a_damaged_shard_is_a_sentence(tmp_path: Path) -> None:
    cache = EmissionCache.write(tmp_path, [("u", _log_probs(3, 4, 0), "")], key="k")
    (tmp_path / "emissions-00000.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cached emissions that cannot be read"):
        list(cache)
