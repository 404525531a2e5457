"""`starseq export`: a run for those who do not have starseq: a folder of Hugging Face's, or a graph of ONNX."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from starseq import pretrained, runs
from starseq.data.errors import DataError
from starseq.data.files import write_bytes
from starseq.models.hf import CTCModel, WhisperCTC
from starseq.runs.folder import PRETRAINED

__all__ = ["Exported", "export"]

Form = Literal["hf", "onnx"]
OPSET = 17
FRAMES = 301
"""of 10 ms, which a graph is made with and tried on"""
AGREE = 1e-3
"""how far the outputs of a graph may be from those of the model, beside their size"""


@dataclass(frozen=True)
class Exported:
    """What was written, and how it is loaded."""

    path: Path
    load: str

    def __str__(self) -> str:
        return f"{self.path}: {self.load}"


def export(folder: str | os.PathLike[str], target: str | os.PathLike[str], *, to: Form) -> Exported:
    """Writes the model of the run in `folder`: with "hf" to a new folder `target`, with "onnx" to a file.

    A run that reads repeats as several labels, words as labels, and a model that the form has no place for are a `DataError`. A
    graph is tried before it is written: one whose outputs are not those of the model is a `DataError` too.
    """
    run, target = runs.load(folder), Path(target)
    return _to_onnx(run, target) if to == "onnx" else _to_hf(run, target)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def _to_hf(run: runs.Run, target: Path) -> Exported:
    if target.exists() and any(target.iterdir()):
        raise DataError(f"{target}: there is something already; choose another folder")
    model = run.model
    if not isinstance(model, (CTCModel, WhisperCTC)):
        name = run.recipe.model.name
        raise DataError(f"{run.folder}: transformers has no model like {name}; --to onnx takes every model")
    if not run.merges_repeats:
        raise DataError(
            f"{run.folder}: this run reads repeats as several labels, and what transformers has for CTC merges them"
        )
    settings = run.folder / PRETRAINED if run.trained_here else run.folder
    own = not model.new_head
    if not own and run.tokeniser.unit == "word":
        raise DataError(f"{run.folder}: its labels are words, and transformers reads CTC by letters or pieces of words")
    made = target.with_name(f".{target.name}.part")
    pretrained.copy_settings(str(settings), made)
    if not own:
        pretrained.save_labels(made, run.tokeniser.vocabulary.tokens[1:])
    model.save(made)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        target.rmdir()
    made.replace(target)
    kind = "transformers.AutoModelForCTC" if isinstance(model, CTCModel) else "starseq.models.hf.WhisperCTC"
    return Exported(target, f"{kind}.from_pretrained and transformers.AutoProcessor.from_pretrained load it")


# --- ONNX -------------------------------------------------------------------------------------------------------------


def _to_onnx(run: runs.Run, target: Path) -> Exported:
    reader = run.reader
    frames = FRAMES if reader.seconds is None else round(FRAMES * 0.01 / reader.seconds)
    x = torch.randn(2, frames, reader.bands, generator=torch.Generator().manual_seed(0))
    axes = {
        "x": {0: "batch", 1: "time"},
        "lengths": {0: "batch"},
        "logits": {0: "batch", 1: "frames"},
        "frames": {0: "batch"},
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about branches that hold for this batch: what is made is tried on others
        graph = Path(folder, "graph.onnx")
        try:
            torch.onnx.export(
                run.model, (x, torch.tensor([frames, frames * 2 // 3])), graph, dynamo=False, opset_version=OPSET,
                input_names=["x", "lengths"], output_names=["logits", "frames"], dynamic_axes=axes,
            )  # fmt: skip
        except (RuntimeError, ValueError, TypeError, torch.onnx.errors.OnnxExporterError) as error:
            raise _no_graph(run, error) from None
        content = _with_facts(graph.read_bytes(), run)
    _try(run, content, frames)
    write_bytes(target, content)
    unit = "samples" if reader.bands == 1 else "frames"
    return Exported(
        target, f"inputs x (batch, time, {reader.bands}) of {unit} and lengths (batch), outputs logits and frames"
    )


def _no_graph(run: runs.Run, error: Exception) -> DataError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"{run.folder}: torch makes no ONNX graph of the model {run.recipe.model.name} ({reason})")


def _with_facts(graph: bytes, run: runs.Run) -> bytes:
    """With what is needed to read its outputs: tokens, the blank first, and the place of a frame."""
    import onnx

    model = onnx.load_from_string(graph)
    facts: dict[str, Any] = {
        "tokens": list(run.tokeniser.vocabulary.tokens), "unit": run.tokeniser.unit, "merge_repeats": run.merges_repeats,
        "seconds_per_frame": run.seconds_per_frame, "reader": run.reader.key,
    }  # fmt: skip
    onnx.helper.set_model_props(model, {"starseq": json.dumps(facts, ensure_ascii=False)})
    content: bytes = model.SerializeToString()
    return content


@torch.no_grad()
def _try(run: runs.Run, graph: bytes, frames: int) -> None:
    """Compares graph and model on other batches and lengths than it was made with."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        for batch, time in ((1, frames // 2), (3, frames + frames // 7)):
            x = torch.randn(batch, time, run.reader.bands, generator=torch.Generator().manual_seed(batch))
            lengths = torch.tensor([time, time * 3 // 4, time // 2][:batch])
            logits, after = session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()})
            expected, expected_after = run.model(x, lengths)
            if after.tolist() != expected_after.tolist():
                raise ValueError("its lengths are others")
            for found, true, length in zip(torch.from_numpy(logits), expected, after.tolist(), strict=True):
                if length and float((found[:length] - true[:length]).abs().max()) > AGREE * (
                    1 + float(true[:length].abs().max())
                ):
                    raise ValueError("its outputs are others")
    except Exception as error:  # onnxruntime has kinds of its own, which it does not show
        raise _no_graph(run, error) from None
