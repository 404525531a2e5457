"""`benchmarks/measure.py train`: rows for each model and criterion, from Python and as CUDA graphs, saved, tabled and checked.

There is no GPU here: captures are replaced by what they capture, and the device's clock by one that is wound by hand.
"""

import dataclasses
import functools
import gc
import itertools
import types
import weakref
from pathlib import Path

import pytest
import torch
from benchmarks import growth, measure
from benchmarks import train as bench_train
from benchmarks.train import CASES, PUBLISHED, SMALL

from starseq.jobs import bench, bench_results

STC, CTC = "starseq stc, CUDA graph", "starseq ctc, CUDA graph"
TARGETS = Path(__file__).parents[1] / "benchmarks" / "targets.csv"


@pytest.fixture(scope="module")
def rows():
    return bench_train.bench_train("cpu", ["train-iam"], steps=2)


@pytest.fixture
def cuda(monkeypatch):
    """A machine that passes for one with CUDA: steps that take the milliseconds of `cuda.ms`, and count themselves."""
    fake = types.SimpleNamespace(
        ms={"torch ctc": 20.0, "starseq stc": 12.0, "starseq ctc": 15.0, STC: 6.0, CTC: 8.0}, log=[], broken=set()
    )

    def step(case, name):
        fake.log.append((case, name))
        return torch.tensor(3.0)

    def steps(case, device):
        return {name: functools.partial(step, case.name, name) for name in bench_train.LOSSES}

    def captured(run):
        run()
        case, name = fake.log[-1]
        if case in fake.broken:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with ...")
        return types.MethodType(lambda self: run(), f"{name}, CUDA graph")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench_train, "_machine", lambda device: "NVIDIA Fake")
    monkeypatch.setattr(bench_train, "_peak_memory", lambda run, device: 7.0)
    monkeypatch.setattr(bench_train, "_steps", steps)
    monkeypatch.setattr(bench_train, "_captured", captured)
    monkeypatch.setattr(bench_train, "_call_ms", lambda run, device: (run(), fake.ms[run.args[1]])[1])
    monkeypatch.setattr(bench_train, "_replay_ms", lambda replay: (replay(), fake.ms[replay.__self__])[1])
    monkeypatch.setattr(bench_train.gc, "collect", lambda: 0)  # hundreds of rounds, a tenth of a second each
    zeros = torch.zeros
    monkeypatch.setattr(bench_train.torch, "zeros", lambda size, device: zeros(size))
    return fake


def test_every_criterion_is_measured(rows):
    providers = dict.fromkeys(row.provider for row in rows)
    assert list(providers) == list(bench_train.LOSSES)
    found = {(row.provider, row.metric): row for row in rows}
    assert len(found) == len(rows) == 4 * len(providers)
    fastest = min(("torch ctc", "starseq ctc"), key=lambda name: found[name, "time"].p50)
    assert found[fastest, "ratio"].p20 == found[fastest, "ratio"].p80 == 1
    for name in providers:
        time, ratio, speed = (found[name, metric].p50 for metric in ("time", "ratio", "speed"))
        assert ratio > 0
        assert speed == pytest.approx(2 / time * 1e3)
        assert found[name, "time"].runs == 2


def test_rounds_go_through_all_orders():
    order = []
    runs = {name: functools.partial(order.append, name) for name in "abc"}
    times = bench_train._turns(runs, lambda run: run() or len(order), 7)
    assert ["".join(order[i : i + 3]) for i in range(0, 21, 3)] == ["abc", "acb", "bac", "bca", "cab", "cba", "abc"]
    assert times == {"a": [1, 4, 8, 12, 14, 18, 19], "b": [2, 6, 7, 10, 15, 17, 20], "c": [3, 5, 9, 11, 13, 16, 21]}


def test_more_rounds_until_the_seconds_are_over(monkeypatch):
    now = itertools.count(step=2.0)
    monkeypatch.setattr(bench_train.time, "perf_counter", lambda: next(now))
    calls = []
    times = bench_train._turns({"a": lambda: calls.append("a")}, lambda run: run() or 1.0, 3, seconds=7.0)
    assert len(times["a"]) == len(calls) == 6  # three without looking at the clock, then at 2, 4, 6 and, too late, 8
    assert len(bench_train._turns({"a": lambda: None}, lambda run: run() or 1.0, 3, seconds=-1.0)["a"]) == 3


def test_garbage_waits_for_the_end_of_a_round():
    on = []
    bench_train._turns({"a": lambda: on.append(gc.isenabled())}, lambda run: run() or 1.0, 3)
    assert on == [False] * 3
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        bench_train._turns({"a": lambda: 1 / 0}, lambda run: run(), 1)
    assert gc.isenabled()


def test_ratios_are_of_the_same_round():
    # From the third round on the machine is three times as slow, and torch's CTC, the faster one, was slow in the first as well.
    times = {
        "torch ctc": [30.0, 10.0, 30.0, 30.0, 30.0],
        "starseq stc": [9.0, 9.0, 27.0, 27.0, 27.0],
        "starseq ctc": [11.0, 11.0, 33.0, 33.0, 33.0],
    }
    rows = bench_train._rows(SMALL[2], "cpu", times, {"starseq stc": 5.0})
    found = {(row.provider, row.metric): row for row in rows}
    ratio = found["starseq stc", "ratio"]
    assert (ratio.p20, ratio.p50, ratio.p80) == pytest.approx((0.78, 0.9, 0.9))
    assert found["starseq ctc", "ratio"].p50 == pytest.approx(1.1)
    assert found["torch ctc", "ratio"].p50 == 1
    assert found["starseq stc", "time"].p50 == 27
    assert found["starseq stc", "memory"].p50 == 5


def test_the_table_says_how_sure_a_ratio_is():
    """The standard error of a median of 20,000 draws, each with normal noise of 0.1: 0.1 * sqrt(pi / 2) / sqrt(20,000)."""
    noise = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    times = {"torch ctc": [1.0] * len(noise), "starseq stc": (0.9 + 0.1 * noise).tolist()}
    line = bench_results.table(bench_train._rows(SMALL[2], "cpu", times, {})).splitlines()[-1]
    middle, error = line.split(" | ")[5].split(" ± ")
    assert float(middle) == pytest.approx(0.9, abs=3e-3)
    assert error == "0.0009"  # 0.1 * 1.2533 / 141.4 = 0.00089, to the four decimals that files keep


@pytest.mark.parametrize(
    ("spread", "text"), [(0.2, "1.07 ± 0.12"), (0.02, "1.070 ± 0.012"), (0.002, "1.0700 ± 0.0012")]
)
def test_a_step_is_above_its_target_by_more_than_its_error(spread, text, tmp_path):
    """Four rounds of 1.07 ± spread: p20 and p80 lie 0.83 of it away, and the standard error is 0.62 of it."""
    times = {"torch ctc": [1.0] * 4, "starseq stc": [1.07 - 2.0833 * spread, 1.07, 1.07, 1.07 + 2.0833 * spread]}
    rows = bench_train._rows(SMALL[2], "cpu", times, {})
    (tmp_path / "targets.csv").write_text("device,case,provider,over,ratio\ncpu,train-iam,starseq stc,torch ctc,1.0\n")
    failures = bench_results.check(rows, tmp_path / "targets.csv")
    undecided = bench_results.undecided(rows, tmp_path / "targets.csv")
    if spread > 0.1:
        assert failures == []
        (line,) = undecided
        assert line.startswith(f"train-iam, starseq stc: ratio {text} may be above 1 or not")
    else:
        assert failures == [f"train-iam, starseq stc: ratio {text} is above 1"]
        assert undecided == []


def test_large_memory_is_readable():
    rows = bench_train._rows(SMALL[2], "cpu", {"torch ctc": [1.0], "starseq stc": [1.0]}, {"starseq stc": 37_610.4})
    assert bench_results.table(rows).splitlines()[-1].endswith(" | 37,610 |")


def test_saved_tabled_and_checked(rows, tmp_path):
    bench_results.save(rows, tmp_path / "results.csv")
    bench_results.save(rows, tmp_path / "results.csv")
    assert len(bench_results.load(tmp_path / "results.csv")) == len(rows)
    shown = bench_results.table(bench_results.load(tmp_path / "results.csv"))
    assert shown.count("\n| train-iam | 2, 80, 80, 10 | float32 | ") == 3
    (tmp_path / "targets.csv").write_text(
        "device,case,provider,over,ratio\ncpu,train-iam,starseq stc,torch ctc,0.0001\n"
    )
    steady = [dataclasses.replace(row, p20=row.p50, p80=row.p50) for row in rows]  # two rounds may differ by anything
    (failure,) = bench_results.check(steady, tmp_path / "targets.csv")
    assert failure.startswith("train-iam, starseq stc: ratio ")


def test_graphs_are_compared_with_graphs(cuda):
    notes, calls = [], []
    rows = bench_train.bench_train(
        "cuda", steps=3, note=notes.append, progress=lambda done, total: calls.append((done, total))
    )
    assert notes == []
    assert calls == [(i, 9) for i in range(10)]
    assert list(dict.fromkeys(row.case for row in rows)) == [case.name for case in CASES]
    found = {(row.case, row.provider, row.metric): row.p50 for row in rows}
    assert len(found) == len(rows) == (6 * 3 + 3 * 2) * 4
    for case in CASES[3:]:
        assert list(dict.fromkeys(row.provider for row in rows if row.case == case.name)) == list(bench_train.LOSSES)
    for case in PUBLISHED:
        assert list(dict.fromkeys(row.provider for row in rows if row.case == case.name)) == [
            *bench_train.LOSSES,
            STC,
            CTC,
        ]
        assert found[case.name, "starseq stc", "ratio"] == pytest.approx(12 / 15)
        assert found[case.name, STC, "ratio"] == pytest.approx(6 / 8)
        assert found[case.name, CTC, "ratio"] == 1
        assert found[case.name, STC, "time"] == 6
        assert found[case.name, "starseq stc", "memory"] == 7
        assert found[case.name, STC, "memory"] != found[case.name, STC, "memory"]
    # Whatever a capture leaves behind, no measurement from Python comes after it: one step of torch's is the last but captures.
    last = max(i for i, (_, name) in enumerate(cuda.log) if name == "torch ctc")
    assert [name for _, name in cuda.log[:last]].count("torch ctc") == 6 * 4 - 1
    assert {case for case, _ in cuda.log[last + 1 :]} - {CASES[-1].name} == {case.name for case in PUBLISHED}


@pytest.fixture
def captures(cuda, monkeypatch):
    """The captures of STC take 6, 9, 7 and 8 ms; what was captured, as names and as weak references."""
    captured, own = bench_train._captured, iter((6.0, 9.0, 7.0, 8.0))
    made = types.SimpleNamespace(names=[], alive=[], fits=8)

    def again(run):
        replay = captured(run)
        if len(made.names) == made.fits:  # as torch does it: once inside, and once more when the capture is closed
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            finally:
                raise RuntimeError("capture_end failed")
        made.names.append(replay.__self__)
        if replay.__self__ == STC:
            cuda.ms[STC] = next(own)
        made.alive.append(weakref.ref(run))
        assert all(reference() is not None for reference in made.alive)
        return replay

    monkeypatch.setattr(bench_train, "_captured", again)
    return made


def test_a_step_is_captured_several_times_in_both_orders(captures):
    rows = bench_train.bench_train("cuda", ["train-iam"], steps=8)
    assert captures.names == [STC, CTC, CTC, STC, STC, CTC, CTC, STC]
    found = {row.metric: row for row in rows if row.provider == STC}
    assert (found["time"].p50, found["ratio"].p50) == (7.5, 7.5 / 8)
    assert found["time"].runs == found["ratio"].runs == 4  # of 8 rounds: a capture is slow or quick for good


def test_as_many_captures_as_fit(captures):
    captures.fits, notes = 5, []
    rows = bench_train.bench_train("cuda", ["train-iam"], steps=8, note=notes.append)
    (time,) = (row for row in rows if (row.provider, row.metric) == (STC, "time"))
    assert (time.p50, time.runs) == (7.5, 2)  # 6 and 9
    (note,) = notes
    assert note.startswith("train-iam: captured 2 times, not 4: CUDA out of memory (test_benchmarks.py, line ")
    notes.clear()
    captures.names.clear()
    captures.alive.clear()
    captures.fits = 1
    rows = bench_train.bench_train("cuda", ["train-iam"], steps=8, note=notes.append)
    assert not [row for row in rows if row.provider == STC]
    assert notes[0].startswith("train-iam: not measured as a CUDA graph: ")


def test_each_capture_has_its_share_of_the_seconds(cuda, monkeypatch):
    turns, asked = bench_train._turns, []
    monkeypatch.setattr(bench_train, "_turns", lambda runs, clock, rounds, seconds: asked.append((rounds, seconds)) or
                        turns(runs, clock, rounds))  # fmt: skip
    bench_train.bench_train("cuda", ["train-iam"], steps=10, seconds=20.0)
    assert asked == [(10, 20.0), *[(3, 5.0)] * 4]


def test_a_case_that_does_not_fit_costs_its_own_rows_only(cuda, monkeypatch):
    def too_large(run, device):
        if run.args[0] == "train-words-x8" and run.args[1] == "torch ctc":
            raise torch.OutOfMemoryError
        return 7.0

    monkeypatch.setattr(bench_train, "_peak_memory", too_large)
    notes = []
    rows = bench_train.bench_train("cuda", steps=1, note=notes.append)
    assert notes == ["train-words-x8: not measured, for the device's memory does not suffice"]
    assert {row.case for row in rows} == {case.name for case in CASES} - {"train-words-x8"}
    assert {row.case for row in rows if row.provider == STC} == {case.name for case in PUBLISHED}


def test_graphs_in_the_table_and_in_the_file(cuda, tmp_path):
    bench_results.save(bench_train.bench_train("cuda", ["train-iam"], steps=1), tmp_path / "results.csv")
    shown = bench_results.table(bench_results.load(tmp_path / "results.csv"))
    assert "| train-iam | 8, 600, 80, 42 | bfloat16 | starseq stc | 12 (12 to 12) | 0.800 | 666.7 | 7 |" in shown
    assert f"| train-iam | 8, 600, 80, 42 | bfloat16 | {STC} | 6 (6 to 6) | 0.750 | 1333 |  |" in shown


def test_a_broken_capture_costs_its_own_rows_only(cuda):
    cuda.broken = {"train-words"}
    notes = []
    rows = bench_train.bench_train("cuda", steps=1, note=notes.append)
    (note,) = notes
    assert note.startswith(
        "train-words: not measured as a CUDA graph: CUDA error: operation not permitted when stream is capturing (test_bench"
    )
    assert "\n" not in note
    graphs = {row.case for row in rows if row.provider == STC}
    assert graphs == {"train-words-1536", "train-iam"}
    assert {row.case for row in rows if row.provider == "starseq stc"} == {case.name for case in CASES}
    assert "train-words-1536" in bench_results.table(rows)


def test_a_graph_that_computes_something_else_is_not_timed(cuda, monkeypatch):
    monkeypatch.setattr(bench_train, "_captured", lambda run: lambda: None)  # the loss stays 0
    notes = []
    rows = bench_train.bench_train("cuda", ["train-iam"], steps=1, note=notes.append)
    assert [row.provider for row in rows if row.metric == "time"] == list(bench_train.LOSSES)
    assert "the loss is 0 when replayed, 3 otherwise" in notes[0]


def test_the_first_reason_is_told():
    def capture():
        try:
            raise RuntimeError("the real one\nmore")
        finally:
            raise RuntimeError("the capture ended badly")

    with pytest.raises(RuntimeError) as caught:
        capture()
    assert bench_train._why(caught.value).startswith("the real one (test_benchmarks.py, line ")


def test_targets_of_steps(cuda):
    cuda.ms |= {"starseq stc": 15.3, STC: 8.02}
    failures = bench_results.check(bench_train.bench_train("cuda", steps=1), TARGETS)
    expected = [f"{case.name}, {name}: ratio {ratio} is above 1"
                for name, ratio in (("starseq stc", "1.02"), (STC, "1.002"))
                for case in CASES if name != STC or not case.busy]  # fmt: skip
    assert failures == expected
    cuda.ms |= {"starseq stc": 15.0, STC: 8.0}
    assert bench_results.check(bench_train.bench_train("cuda", steps=1), TARGETS) == []


def test_the_program_checks_steps_and_says_what_is_missing(cuda, capsys):
    cuda.broken = {"train-words"}
    check = ["train", "--device", "cuda", "--check", "--targets", str(TARGETS), "--seconds", "0"]
    assert measure.main(check) == 0
    said = capsys.readouterr()
    assert said.err.count("measure.py: train-words: not measured as a CUDA graph") == 1
    assert f"| {STC} |" in said.out
    cuda.ms["starseq stc"] = 16.0
    assert measure.main([*check, "--case", "train-iam-x4"]) == 1
    assert capsys.readouterr().err == "measure.py: train-iam-x4, starseq stc: ratio 1.067 is above 1\n"
    assert measure.main(check) == 1
    assert capsys.readouterr().out.count("| train-") == 3 * 6 + 2 * 3 - 2


def loss_rows(case, provider, ms, memory=1.0, device="NVIDIA Fake"):
    what, shared = (case, "2, 10, 1024, 3", "float32", provider), (device, "2", "0")
    return [bench_results.Measurement(*what, metric, "", value, value, value, 1, *shared)
            for metric, value in (("time", ms), ("ratio", ms / 10), ("memory", memory))]  # fmt: skip


def test_targets_over_torch_over_a_peer_and_of_memory(tmp_path):
    """One gradient of 2 x 10 x 1,024 float32 is 5/64 MiB."""
    path = tmp_path / "targets.csv"
    lines = ["a,torch ctc,0.5", "a,cudnn ctc,1", "a,one gradient,1.25", "gone,torch ctc,1", "a,flaggems 1 ctc,1"]
    path.write_text("\n".join(["device,case,provider,over,ratio", *(f"cuda,iam,{line}" for line in lines)]))
    good = loss_rows("iam", "a", 4.0, 0.09) + loss_rows("iam", "gone", 9.0) + loss_rows("iam", "cudnn ctc", 4.1)
    assert bench_results.check(good, path) == []
    bad = loss_rows("iam", "a", 6.0, 0.1) + loss_rows("iam", "cudnn ctc", 5.0)
    assert bench_results.check(bad, path) == [
        "iam, a: ratio 0.6 is above 0.5",
        "iam, a: ratio 1.2 over cudnn ctc is above 1",
        "iam, a: ratio 1.28 over one gradient is above 1.25",
        "iam, gone: not measured",
    ]
    assert bench_results.check(loss_rows("letters", "a", 60.0), path) == []


def test_a_bench_has_a_row_for_each_loss(monkeypatch):
    case = bench.Case("tiny", 2, 12, 7, 3)
    monkeypatch.setitem(bench.CASES, "cpu", (case,))
    rows = bench.bench(seconds=0.0)
    expected = [*bench.PROVIDERS, bench.MODULE]
    assert [row.provider for row in rows if row.metric == "time"] == expected
    assert all(row.p50 > 0 and row.runs == 5 for row in rows if row.metric == "time")
    assert "| tiny | 2, 12, 7, 3 | float32 | starseq STCLoss() | " in bench_results.table(rows)


def test_growth_is_measured(monkeypatch, tmp_path):
    small = tuple(dataclasses.replace(case, B=1, T=9, V=min(case.V, 12), U=2) for case in growth.CASES[::8])
    monkeypatch.setattr(growth, "CASES", small)
    path = tmp_path / "results.csv"
    assert measure.main(["growth", "--seconds", "0", "--save", str(path)]) == 0
    assert {row.case for row in bench_results.load(path)} == set(bench_results.GROWING)


def test_the_program_says_mistakes_in_one_sentence(capsys, tmp_path):
    assert measure.main(["decode"]) == 2
    assert capsys.readouterr().err == "measure.py: decode makes its utterances from a text: give --corpora\n"
    assert measure.main(["train", "--case", "words"]) == 2
    assert capsys.readouterr().err.startswith("measure.py: --case: 'words' is none of train-words, ")
    (tmp_path / "notes.csv").write_text("my notes\n")
    assert measure.main(["train", "--save", str(tmp_path / "notes.csv")]) == 2
    assert "notes.csv: not " in capsys.readouterr().err


def test_a_capture_that_breaks_gives_the_device_back(monkeypatch):
    """As torch.cuda.graph does: its end raises, and the stream is not put back."""
    stream = types.SimpleNamespace(wait_stream=lambda other: None, device_index=0)
    default = types.SimpleNamespace(wait_stream=lambda other: None, device_index=0)
    current, states, ran = [default], [], []

    class Within:
        def __init__(self, it):
            self.it = it

        def __enter__(self):
            self.before, current[0] = current[0], stream

        def __exit__(self, kind, *args):
            if kind is not None:
                raise RuntimeError("operation failed due to a previous error during capture")
            current[0] = self.before

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda it: current.__setitem__(0, it))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "graph", Within)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: types.SimpleNamespace(replay="replay"))
    monkeypatch.setattr(torch.cuda, "default_generators", (types.SimpleNamespace(graphsafe_set_state=states.append),))
    monkeypatch.setattr(torch, "Generator", lambda device: f"new on {device}")

    def step(last):
        ran.append(current[0] is stream)
        if len(ran) == last:
            raise RuntimeError("waits for the device")

    assert bench._captured(lambda: step(last=0)) == "replay"
    assert ran == [True] * 4
    assert current[0] is default
    assert states == []
    ran.clear()
    with pytest.raises(RuntimeError) as caught:
        bench._captured(lambda: step(last=4))
    assert bench_train._why(caught.value).startswith("waits for the device (")
    assert current[0] is default
    assert states == ["new on cuda"]


def test_steps_leave_nothing_that_a_capture_would_trip_over():
    """No gradient, and no node of autograd: it would remember the stream of a step before the capture."""
    case = SMALL[2]
    runs = bench_train._steps(case, "cpu")
    model = next(cell.cell_contents for cell in runs["starseq stc"].func.__closure__
                 if isinstance(cell.cell_contents, torch.nn.Module))  # fmt: skip
    parameters = list(model.parameters())

    def node_of(parameter):
        """Made anew where the last one is gone."""
        return torch.autograd.graph.get_gradient_edge(parameter).node

    def mark(*_):
        for parameter in parameters:
            node_of(parameter).metadata["old"] = True

    for run in runs.values():
        run()  # what compiles holds on to the frames of its callers until they are collected
    gc.collect()
    model.register_forward_hook(mark)
    for run in runs.values():
        loss = run()
        assert loss.isfinite()
        assert all(parameter.grad is None for parameter in parameters)
        assert not any("old" in node_of(parameter).metadata for parameter in parameters)


@pytest.mark.parametrize("case", SMALL[::2], ids=lambda case: case.name)
def test_models_never_wait_for_the_device(case):
    """On the device without values, what asks for one raises, and what would be copied from the CPU is not there."""
    model = bench_train.models.load(case.model)(case.F, case.tokens()[:50], **case.settings).to("meta").train()
    x, lengths = (torch.empty(case.B, case.T, case.F, device="meta"), torch.full((case.B,), case.T, device="meta"))
    logits, frames = model(x, lengths)
    assert logits.device == frames.device == x.device
    logits.sum().backward()


def test_adagrad_steps_depend_on_no_count():
    """A replay does not count on the host: at a constant rate a step is the same whatever was counted."""

    def moved(counted):
        weight = torch.nn.Parameter(torch.ones(3))
        optimiser = torch.optim.Adagrad([weight], lr=1e-6, foreach=True)
        optimiser.state[weight]["step"] += counted
        weight.grad = torch.tensor([1.0, 2.0, 3.0])
        optimiser.step()
        return weight.detach()

    assert torch.equal(moved(0), moved(1000))


def test_published_sizes():
    words, lean, iam = PUBLISHED
    assert words.B * words.T == 240 * 100  # 240 s at 100 frames a second
    assert len(words.tokens()) == len(set(words.tokens())) == words.V == 50_001
    assert len(set(iam.tokens())) == iam.V == 80
    assert lean.settings == {"hidden": 1536}
    assert [case.name for case in SMALL] == [case.name for case in PUBLISHED]


def test_bad_arguments():
    with pytest.raises(ValueError, match="--case: 'words' is none of train-words, train-words-1536, train-iam"):
        bench_train.bench_train("cpu", ["words"])


@pytest.mark.slow
def test_every_case_runs():
    rows = bench_train.bench_train("cpu", steps=1)
    assert {row.case for row in rows} == {case.name for case in SMALL}


def test_batches_that_keep_a_device_busy():
    assert [(case.name, case.B) for case in CASES[3:]] == [
        ("train-words-x8", 128),
        ("train-words-1536-x8", 128),
        ("train-iam-x4", 32),
    ]
    assert [(case.model, case.settings, case.T) for case in CASES[3:]] == [
        (c.model, c.settings, c.T) for c in PUBLISHED
    ]
