"""Makes the pictures of the pages that need a trained run, a recording or a browser. They are made by hand, when a page changes:

    starseq prepare digits corpus --train 3000 --dev 200 --test 200
    starseq drop corpus/manifest.jsonl corpus/partial.jsonl --p-drop 0.5 --unit char --mark --keep-text --no-plot --split train
    starseq fit corpus/partial.jsonl --out fit
    starseq manifest filter fit/completed.jsonl fit/sure.jsonl --where 'confidence>=0.99'
    starseq report fit/teacher --completed fit/sure.jsonl -o many.html --root . --examples 300 --alignments 0
    starseq demo --out demo
    starseq align RUN minute.wav minute.txt -o minute.json
    python docs/pictures.py --fit fit/report.html --completed many.html --demo demo/report.html --minute minute.wav minute.json

Needs Chromium. The minute is of AudioMNIST (MIT).
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
IMAGES = ROOT / "docs" / "images"
SECONDS = 16.0  # of a row of the minute


def save(data: bytes, path: Path, colours: int = 64) -> None:
    """As a PNG of few colours, which is small."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)


def shot(page: Path, width: int, box: str, path: Path) -> None:
    """A part of a page. `box` is JavaScript for [left, top, width, height] in its pixels."""
    from tests.chromium import Chromium

    with Chromium(width=width, height=900) as browser:
        browser.open(page)
        x, y, wide, high = browser.evaluate(box)
        clip = {"x": x, "y": y, "width": wide, "height": high, "scale": 1}
        found = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        save(base64.b64decode(found["data"]), path)


def minute(wave: Path, alignment: Path, path: Path) -> None:
    """The waveform with each word at its place; orange: audio without text; red: words without audio."""
    import numpy as np
    import soundfile
    from matplotlib.figure import Figure

    sound, rate = soundfile.read(wave, dtype="float32")
    found: dict[str, Any] = json.loads(alignment.read_text(encoding="utf-8"))
    end = len(sound) / rate
    rows = max(1, int(end / SECONDS))  # whole rows
    figure = Figure(figsize=(10, 1.25 * rows), layout="constrained", dpi=110)
    for row, axes in enumerate(figure.subplots(rows, 1)):
        begin = row * SECONDS
        piece = sound[int(begin * rate) : int((begin + SECONDS) * rate)]
        peaks = np.abs(piece[: len(piece) // 160 * 160]).reshape(-1, 160).max(1)
        axes.fill_between(begin + np.arange(len(peaks)) * 160 / rate, -peaks, peaks, color="#8c959f", linewidth=0)
        high, before = 1.05, -1.0
        for word in found["words"]:
            if begin <= word["start"] < begin + SECONDS:
                high = (
                    1.65 if word["start"] - before < 0.55 and high < 1.5 else 1.05
                )  # beside its neighbour, not over it
                before = word["start"]
                axes.axvline(word["start"], color="#0969da", linewidth=0.6)
                axes.text(word["start"], high, word["word"].lower(), color="#0969da", fontsize=8, ha="center")
        for part in found["audio_without_text"]:
            axes.axvspan(part["start"], part["end"], color="#bc4c00", alpha=0.2, linewidth=0)
            if begin <= part["start"] < begin + SECONDS and part["end"] - part["start"] > 1:
                axes.text(part["start"], 1.05, f"* {part['text']}", color="#bc4c00", fontsize=8)
        lost = [word for word in found["words_without_audio"] if begin <= word["start"] < begin + SECONDS]
        for place in dict.fromkeys(word["start"] for word in lost):
            text = " ".join(word["word"].lower() for word in lost if word["start"] == place)
            axes.text(place, -1.5, f"nobody said: {text}", color="#cf222e", fontsize=8)
        axes.set(xlim=(begin, begin + SECONDS), ylim=(-1.7, 2.2), yticks=[])
        axes.tick_params(labelsize=7)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    save(drawn.getvalue(), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--completed", type=Path)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--minute", type=Path, nargs=2)
    args = parser.parse_args()
    if args.fit:
        shot(args.fit, 1000, "[0, 0, 1000, 800]", IMAGES / "report-fit.png")
    if args.completed:
        shot(args.completed, 760, COMPLETED, IMAGES / "completed.png")
    if args.demo:
        shot(args.demo, 1000, "[0, 0, 1000, 860]", IMAGES / "report-demo.png")
    if args.minute:
        minute(*args.minute, IMAGES / "aligned.png")


COMPLETED = """(() => {
  const sure = one => [...one.querySelectorAll('ol b')].every(share => parseInt(share.textContent.replace('>', '')) >= 90)
  const whole = [...document.querySelectorAll('article.filled')].filter(
    one => !one.querySelector('mark.open') && one.querySelectorAll('mark.in').length == 3 && one.querySelector('img') && sure(one))
  const box = whole.sort((a, b) => b.querySelector('img').width - a.querySelector('img').width)[0].getBoundingClientRect()
  return [box.left - 8, box.top + scrollY - 8, box.width + 31, box.height + 12]
})()"""
"""the longest line with three holes, all of which were filled with 90 % and more"""

if __name__ == "__main__":
    main()
