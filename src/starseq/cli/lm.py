"""`starseq lm`: language models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import app, numbers, progress_bar

lm_app = typer.Typer(no_args_is_help=True, help="Train, mix and score language models.")
app.add_typer(lm_app, name="lm")

Texts = Annotated[
    list[Path],
    typer.Argument(metavar="TEXT...", help="Sentences, one a line (.gz and .xz too), or manifests (.jsonl)."),
]
UnitOption = Annotated[
    Literal["word", "char"] | None,
    typer.Option(help="What a token is; the space is <space>.", show_default="that of --recipe, or word"),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(help="Normalise the text as this recipe, YAML file or run folder does.", metavar="NAME|PATH"),
]


@lm_app.command("train")
def train(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="lm.arpa or lm.arpa.gz; with --neural a folder.")],
    order: Annotated[int, typer.Option(help="n of the n-grams.")] = 5,
    prune: Annotated[
        str,
        typer.Option(
            metavar="C,C,...", help="Leave out n-grams with such a count or less, for n = 1, 2, ...; the last holds on."
        ),
    ] = "0",
    limit_vocabulary: Annotated[
        Path | None,
        typer.Option(help="Leave out n-grams with words that are not in this file, for example tokens.txt."),
    ] = None,
    vocabulary_size: Annotated[int | None, typer.Option(help="Keep the most frequent words only.")] = None,
    memory: Annotated[str, typer.Option(help="Bound of the sort buffers; the rest is sorted on the disk.")] = "4G",
    unit: UnitOption = None,
    recipe: RecipeOption = None,
    neural: Annotated[bool, typer.Option("--neural", help="Train a Transformer instead of counting n-grams.")] = False,
    dev: Annotated[
        list[Path] | None, typer.Option(help="--neural: texts to evaluate on.", show_default="every 50th sentence")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="--neural: go on from the folder's last checkpoint.")
    ] = False,
    steps: Annotated[int, typer.Option(help="--neural: optimiser steps.")] = 50_000,
    batch_tokens: Annotated[int, typer.Option(help="--neural: tokens of a batch, with the padding.")] = 8192,
    lr: Annotated[float, typer.Option(help="--neural: the highest learning rate.")] = 5e-4,
    warmup: Annotated[int, typer.Option(help="--neural: steps until it is reached.")] = 1000,
    eval_every: Annotated[int, typer.Option(help="--neural: steps between evaluations and checkpoints.")] = 1000,
    width: Annotated[int, typer.Option(help="--neural: width of the model.")] = 512,
    heads: Annotated[int, typer.Option(help="--neural: attention heads.")] = 8,
    hidden: Annotated[int, typer.Option(help="--neural: hidden units of the feed-forward nets.")] = 2048,
    layers: Annotated[int, typer.Option(help="--neural: blocks.")] = 6,
    dropout: Annotated[float, typer.Option(help="--neural: dropout.")] = 0.1,
    seed: Annotated[int, typer.Option(help="--neural: of weights, batches and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="--neural: cpu, cuda or auto.")] = "auto",
) -> None:
    """Train a language model.

    n-grams have interpolated modified Kneser-Ney smoothing, as KenLM's lmplz; the model is an ARPA file. With --neural
    it is a Transformer, in a folder.
    """
    from starseq.jobs import lm as job

    used, normaliser = job.text_settings(recipe, unit, neural=neural)
    if neural:
        if limit_vocabulary is not None:
            raise ValueError("--limit-vocabulary is for n-grams; with --neural give --vocabulary-size")
        settings = job.Neural(
            width=width, heads=heads, hidden=hidden, layers=layers, dropout=dropout, vocabulary_size=vocabulary_size,
            batch_tokens=batch_tokens, lr=lr, warmup_steps=warmup, max_steps=steps, eval_every=eval_every, seed=seed,
        )  # fmt: skip
        with progress_bar(
            "Training the language model", but=", with --resume it goes on from the last checkpoint"
        ) as progress:
            result = job.train_neural(
                texts, out, settings, dev=dev or (), unit=used, normaliser=normaliser, resume=resume, device=device,
                progress=progress,
                on_evaluated=lambda step, value: typer.echo(f"step {step:,}: dev perplexity {value:.2f}", err=True),
            )  # fmt: skip
        typer.echo(
            f"{out}: {result.steps:,} steps on {result.tokens:,} tokens, vocabulary {result.vocabulary:,}; "
            f"best dev perplexity {result.best_perplexity:.2f} at step {result.best_step:,}"
        )
        return
    if resume or dev:
        raise ValueError(f"{'--resume' if resume else '--dev'} is for --neural")
    thresholds = [int(value) for value in numbers(prune, "--prune")]
    with progress_bar("Estimating the language model") as progress:
        model = job.train_ngram(
            texts, out, order=order, prune=thresholds, vocabulary=limit_vocabulary, vocabulary_size=vocabulary_size,
            memory=job.memory_of(memory), unit=used, normaliser=normaliser, progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: {model.tokens:,} tokens of {model.types:,} types in {model.sentences:,} sentences")
    for n, (count, discount) in enumerate(zip(model.counts, model.discounts, strict=True), start=1):
        typer.echo(f"{n}-grams {count:>13,}   discounts {' '.join(f'{value:.4f}' for value in discount)}")
    if model.fallback:
        orders = ", ".join(map(str, model.fallback))
        typer.echo(f"starseq: too few n-grams to tell the discounts of order {orders}: 0.5 1 1.5 instead", err=True)


@lm_app.command("mix")
def mix(
    lms: Annotated[list[Path], typer.Argument(metavar="LM...", help="ARPA files, plain or .gz.")],
    out: Annotated[Path, typer.Option(help="lm.arpa or lm.arpa.gz.")],
    weights: Annotated[
        str | None, typer.Option(metavar="W,W,...", help="One for each.", show_default="the best for --dev")
    ] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Text that the mixture is to make likely.")] = None,
    unit: UnitOption = None,
    recipe: RecipeOption = None,
) -> None:
    """Mix n-gram models.

    Such as one of much text and one of the right kind of text. Every n-gram of any of them has the weighted mean of its
    probabilities.
    """
    from starseq.jobs import lm as job

    used, normaliser = job.text_settings(recipe, unit)
    shares = None if weights is None else numbers(weights, "--weights")
    with progress_bar("Mixing") as progress:
        mixture = job.mix_ngrams(
            lms, out, weights=shares, dev=dev or (), unit=used, normaliser=normaliser, progress=progress
        )
    typer.echo(f"{out}: {mixture.words:,} words; n-grams {', '.join(f'{count:,}' for count in mixture.counts)}")
    for path, weight in zip(lms, mixture.weights, strict=True):
        typer.echo(f"{weight:.4f}  {path}")


@lm_app.command("score")
def score(
    lm: Annotated[Path, typer.Argument(metavar="LM", help="An ARPA file, or the folder of a Transformer.")],
    texts: Texts,
    unit: UnitOption = None,
    recipe: RecipeOption = None,
    device: Annotated[str, typer.Option(help="For a Transformer: cpu or cuda.")] = "cpu",
) -> None:
    """The perplexity of a text.

    Of tokens and ends of sentences, with and without the words that the model does not know.
    """
    from starseq.jobs import lm as job

    used, normaliser = job.text_settings(recipe, unit)
    with progress_bar("Scoring") as progress:
        result = job.score(lm, texts, unit=used, normaliser=normaliser, device=device, progress=progress)
    typer.echo(f"{result.sentences:,} sentences, {result.tokens:,} tokens with their ends, {result.unknown:,} unknown")
    typer.echo(f"perplexity {result.including_unknown:.4f} with unknown words as <unk>")
    if result.excluding_unknown == result.excluding_unknown:
        typer.echo(f"perplexity {result.excluding_unknown:.4f} without them")
