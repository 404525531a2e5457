"""Run folders: what training leaves behind, and all that is needed to use it.

| file | holds |
|---|---|
| `recipe.yaml` | the recipe, every default written out |
| `tokens.txt` | the vocabulary |
| `pieces.model` | the model of sentencepiece, where the labels are its pieces |
| `model.safetensors` | the best weights; in its metadata the step, the dev error and lambda |
| `last.ckpt` | the state of training at its last checkpoint |
| `metrics.csv` | one row for every logged step |
| `results.json` | what was found in the end: `train`, and what `starseq evaluate` adds |
| `plots/` | pictures |
| `pretrained/` | settings, feature extractor and tokeniser of a model from outside |
"""

from __future__ import annotations

from starseq.runs.emissions import Emission, emissions, listen
from starseq.runs.folder import Run, load, read_results, update_results

__all__ = ["Emission", "Run", "emissions", "listen", "load", "read_results", "update_results"]
