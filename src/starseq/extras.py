"""What the command says before it has imported anything: which extra brings a package that is missing, and that it was stopped."""

from __future__ import annotations

STOPPED = "stopped; the same command can be given again"

_EXTRAS = {
    "cli": ("typer", "rich", "matplotlib"),
    "speech": ("soundfile",),
    "images": ("PIL", "sklearn"),
    "train": ("lightning_fabric", "tensorboard", "yaml", "safetensors", "rapidfuzz"),
    "decode": ("flashlight", "safetensors", "rapidfuzz"),
    "formats": ("pyarrow", "lhotse", "urllib3"),
    "pieces": ("sentencepiece",),
    "hf": ("transformers", "safetensors"),
    "onnx": ("onnx", "onnxruntime"),
}


def missing(package: str | None) -> str:
    """One sentence about a package that could not be imported, by the name that is imported.

    >>> missing("yaml")
    "this needs the package 'yaml', which is not installed: pip install 'starseq[train]', in a checkout -e '.[train]'"
    """
    name = (package or "").partition(".")[0]
    extra = next((extra for extra, packages in _EXTRAS.items() if name in packages), "all")
    return (
        f"this needs the package {name!r}, which is not installed: pip install 'starseq[{extra}]', "
        f"in a checkout -e '.[{extra}]'"
    )
