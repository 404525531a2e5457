"""Several processes do one job, as torchrun and SLURM start them: to the byte what one writes; a killed one is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.run_folder import make_run

from starseq.data.drop import Dropper, FixedDrop
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs.drop import drop

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "tests" / "jobs" / "several.py")
LIMIT = 900
"""seconds: far more than it takes"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a manifest that has lost half of its labels, and one row with more labels than frames; and with sounds."""
    import numpy as np
    import soundfile

    folder = make_run(tmp_path_factory.mktemp("runs") / "run", "data.drop=null", lines=7)
    (full,) = (folder / "data").glob("*.jsonl")
    partial = folder / "data" / "partial.jsonl"
    drop(full, partial, Dropper(FixedDrop(0.5), unit="char", keep_text=True))
    shutil.copy(partial, folder / "data" / "good.jsonl")
    rows = [row.fields for row in read_manifest(partial)]
    rows[3]["text"] = "1" * 500
    write_manifest(partial, rows)
    for number in range(3):
        soundfile.write(folder / "data" / f"{number}.wav", np.random.default_rng(number).normal(0, 0.1, 8000), 16_000)
    write_manifest(
        folder / "data" / "sounds.jsonl", [{"id": str(n), "path": f"{n}.wav", "text": "a"} for n in range(3)]
    )
    return folder


def commands(run: Path, out: Path) -> list[list[str]]:
    data, cpu = run / "data", ["--device", "cpu"]
    return [
        [str(word) for word in command]
        for command in (
            ("complete", run, data / "good.jsonl", "-o", out / "c.jsonl", "--force", "--threshold", "0", *cpu),
            ("align", run, data / "good.jsonl", "-o", out / "a", *cpu),
            ("pseudo", run, data / "partial.jsonl", "-o", out / "p.jsonl", "--force", "--kind", "confident", *cpu,
             "--threshold", "0.15", "--workers", "1"),
            ("evaluate", run, "--beam", "5", "--workers", "0", *cpu),
            ("prepare", "features", data / "sounds.jsonl", out / "features", "--workers", "0"),
        )
    ]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def begun(*launcher: object, of: Sequence[Sequence[str]], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, launcher), PROGRAM, json.dumps(of)], env=environment(**more), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=LIMIT)
    return process.returncode, output


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def slurm(rank: int, port: int) -> dict[str, str]:
    """What srun tells two tasks on this machine."""
    return {
        "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job", "SLURM_NODELIST": "127.0.0.1", "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank), "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def written(run: Path, out: Path) -> dict[str, bytes]:
    found = [*out.rglob("*"), *(run / "readings").rglob("*"), run / "results.json", *run.glob(".*")]
    return {os.path.relpath(path, out.parent): path.read_bytes() for path in found if path.is_file()}


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    folder = tmp_path_factory.mktemp("one")
    shutil.copytree(run, folder / "run")
    code, output = ended(begun(sys.executable, of=commands(folder / "run", folder / "out")))
    assert code == 0, output
    found = written(folder / "run", folder / "out")
    assert {
        "out/c.jsonl",
        "out/p.summary.json",
        "run/readings/test.jsonl",
        "out/features/manifest.jsonl",
    } <= found.keys()
    assert found["out/p.failed.jsonl"]
    return found


def test_two_processes_write_what_one_writes(run: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    work = commands(tmp_path / "run", tmp_path / "out")
    code, output = ended(begun(*torchrun("--standalone", "--nproc-per-node", "2"), of=work))
    assert code == 0, output
    assert written(tmp_path / "run", tmp_path / "out") == whole
    assert output.count("rows labelled") == 1  # only the first process speaks


def test_a_killed_process_is_named_and_the_same_command_goes_on(
    run: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (work, *_) = commands(tmp_path / "run", tmp_path / "out")
    port, flag = free_port(), str(tmp_path / "flag")
    both = [begun(sys.executable, of=[work], KILLED="1", FLAG=flag, **slurm(rank, port)) for rank in (0, 1)]
    (first, said), (second, _) = map(ended, both)
    assert (first, second) == (2, -9), said
    assert re.search(r"^starseq: process 1 of 2 \(process id \d+ on 127\.0\.0\.1\) has ended", said, re.MULTILINE), said
    assert "Traceback" not in said
    parts = {path.name: path.read_bytes() for path in (tmp_path / "out").glob(".c.jsonl.part-*")}
    rows = len(list(read_manifest(run / "data" / "good.jsonl")))
    assert [len(parts[f".c.jsonl.part-{rank}"].splitlines()) for rank in (1, 2)] == [-(-rows // 2), 2]
    # On one process now: what both have done is taken over.
    code, output = ended(begun(sys.executable, of=[work]))
    assert code == 0, output
    there = written(tmp_path / "run", tmp_path / "out")
    assert {name: data for name, data in there.items() if name.startswith("out/")} == {
        name: data for name, data in whole.items() if name.startswith("out/c.")
    }


def test_a_mistake_is_said_once(run: Path, tmp_path: Path) -> None:
    work = ["complete", str(run), str(run / "none.jsonl"), "-o", str(tmp_path / "c.jsonl"), "--force"]
    port = free_port()
    ends = list(map(ended, [begun(sys.executable, of=[work], **slurm(rank, port)) for rank in (0, 1)]))
    assert [code for code, _ in ends] == [2, 1], ends
    assert ends[0][1].count("none.jsonl: no such file") == 1
    assert "starseq:" not in ends[1][1]


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Two network namespaces that see each other."""
    names = [f"starseq{os.getpid() % 10_000}{end}" for end in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "sta", "netns", names[0], "type", "veth", "peer", "name", "stb", "netns", names[1])
            for number, (name, link) in enumerate(zip(names, ("sta", "stb"), strict=True), start=1):
                ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces can be made here: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
def test_two_nodes_write_what_one_process_writes(
    run: Path, whole: dict[str, bytes], nodes: list[str], tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    work = commands(tmp_path / "run", tmp_path / "out")
    processes: list[Any] = []
    for rank, name in enumerate(nodes):
        node = torchrun(
            "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank), "--master-addr", "10.213.7.1",
            "--master-port", "29511",
        )  # fmt: skip
        processes.append(begun("ip", "netns", "exec", name, *node, of=work))
    for code, output in map(ended, processes):
        assert code == 0, output
    assert written(tmp_path / "run", tmp_path / "out") == whole
