"""`starseq bench --train`: rows for each model and criterion, saved, tabled and checked."""

import pytest

from starseq.jobs import bench
from starseq.jobs.bench_train import CASES, SMALL, bench_train


@pytest.fixture(scope="module")
def rows():
    return bench_train("cpu", ["train-iam"], steps=2)


def test_every_criterion_is_measured(rows):
    providers = dict.fromkeys(row.provider for row in rows)
    assert list(providers) == list(bench.PROVIDERS)
    found = {(row.provider, row.metric): row for row in rows}
    assert len(found) == len(rows) == 4 * len(providers)
    fastest = min(found[name, "time"].p50 for name in ("torch ctc", "starseq ctc"))
    for name in providers:
        time, ratio, speed = (found[name, metric].p50 for metric in ("time", "ratio", "speed"))
        assert ratio == pytest.approx(time / fastest)
        assert speed == pytest.approx(2 / time * 1e3)
        assert found[name, "time"].runs >= 2


def test_saved_tabled_and_checked(rows, tmp_path):
    bench.save(rows, tmp_path / "results.csv")
    bench.save(rows, tmp_path / "results.csv")
    assert len(bench.load(tmp_path / "results.csv")) == len(rows)
    tables = bench.tables(tmp_path / "results.csv")
    assert tables["train"].count("\n| train-iam | 2, 80, 80, 10 | float32 | ") == 3
    assert all("not measured" in tables[name] for name in ("cpu", "cuda", "scaling", "data", "bench"))
    assert "train-iam" in bench.table(rows)
    (tmp_path / "targets.csv").write_text("device,case,provider,ratio\ncpu,train-iam,starseq stc,0.0001\n")
    (failure,) = bench.check(rows, tmp_path / "targets.csv")
    assert failure.startswith("train-iam, starseq stc: ratio ")


def test_published_sizes():
    words, lean, iam = CASES
    assert words.B * words.T == 240 * 100  # 240 s at 100 frames a second
    assert len(words.tokens()) == len(set(words.tokens())) == words.V == 50_001
    assert len(set(iam.tokens())) == iam.V == 80
    assert lean.settings == {"hidden": 1536}
    assert [case.name for case in SMALL] == [case.name for case in CASES]


def test_bad_arguments():
    with pytest.raises(ValueError, match="--case: 'words' is none of train-words, train-words-1536, train-iam"):
        bench_train("cpu", ["words"])


@pytest.mark.slow
def test_every_case_runs():
    rows = bench_train("cpu", steps=1)
    assert {row.case for row in rows} == {case.name for case in SMALL}
