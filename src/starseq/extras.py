"""Which extra brings a package that is missing."""

from __future__ import annotations

_EXTRAS = {
    "cli": ("typer", "rich", "matplotlib"),
    "speech": ("lhotse", "soundfile", "urllib3"),
    "images": ("PIL", "sklearn"),
    "text": ("jiwer",),
    "train": ("lightning", "tensorboard", "omegaconf", "safetensors"),
    "decode": ("flashlight",),
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxruntime"),
}


def missing(package: str | None) -> str:
    """One sentence about a package that could not be imported, by the name that is imported.

    >>> missing("omegaconf")
    "this needs the package 'omegaconf', which is not installed: pip install 'starseq[train]', in a checkout -e '.[train]'"
    """
    name = (package or "").partition(".")[0]
    extra = next((extra for extra, packages in _EXTRAS.items() if name in packages), "all")
    return (
        f"this needs the package {name!r}, which is not installed: pip install 'starseq[{extra}]', "
        f"in a checkout -e '.[{extra}]'"
    )
