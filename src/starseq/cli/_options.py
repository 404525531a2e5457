"""Options that several verbs share. They reach a verb as two objects: the search that is asked for, and where it all runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from starseq.cli._app import Root, Said, progress_bar

if TYPE_CHECKING:
    from starseq.jobs._where import Where

__all__ = ["Machine", "options"]

R = TypeVar("R")

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "lm": (Annotated[Path | None, typer.Option(
        help="Search with this n-gram model: ARPA, plain or .gz; for texts also KenLM's binary.")], None),
    "lexicon": (Annotated[Path | None, typer.Option(
        help="Search, and hold a model of letters to these words, one a line.")], None),
    "rescore": (Annotated[Path | None, typer.Option(
        help="Search, and reorder the n best by this language model: ours, Hugging Face's, or ARPA.")], None),
    "alpha": (Annotated[float | None, typer.Option(help="Weight of --lm.", show_default="as tuned")], None),
    "beta": (Annotated[float | None, typer.Option(
        help="Search, and add this for each token.", show_default="as tuned")], None),
    "rescore_alpha": (Annotated[float | None, typer.Option(help="Weight of --rescore.", show_default="as tuned")], None),
    "rescore_beta": (Annotated[float | None, typer.Option(
        help="Added for each character when rescoring.", show_default="as tuned")], None),
    "beam": (Annotated[int | None, typer.Option(
        help="Search, and keep so many hypotheses after each frame.", show_default="500; 100 to fill gaps")], None),
    "beam_tokens": (Annotated[int, typer.Option(help="Tokens of each frame that extend hypotheses.")], 50),
    "device": (Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto is CUDA where there is one.")], "auto"),
    "root": (Root, None),
    "workers": (Annotated[int, typer.Option(min=0, help="Processes that search or compute; 0 is this one alone.")], 2),
    "skip_bad": (Annotated[bool, typer.Option(
        "--skip-bad", help="List what cannot be read beside the result, and go on.")], False),
}  # fmt: skip


class Machine:
    """The options of a verb that say where it runs. `together`: several processes may do it, which torchrun or SLURM starts."""

    def __init__(self, together: bool, values: dict[str, Any]) -> None:
        self.values, self._together = values, together

    @contextmanager
    def at_work(self, what: str, *, goes_on: bool = True) -> Iterator[Where]:
        """For the time of the job, with a bar as `progress_bar` has it. Of several processes, only the first comes out of it."""
        from starseq.jobs._ranks import PartDone, Ranks, start
        from starseq.jobs._where import Where

        try:
            with (
                start() if self._together else Ranks() as ranks,
                progress_bar(what, goes_on=goes_on, first=ranks.first) as progress,
            ):
                yield Where(**self.values, progress=progress, ranks=ranks)
        except PartDone:
            raise Said(0) from None


def options(*, search: str = "", where: str, together: bool = False) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A verb with these options besides its own. It gets those of the search as the `Search` `search`, the others as the
    `Machine` `where`."""

    def decorate(verb: Callable[..., R]) -> Callable[..., R]:
        def command(**values: Any) -> R:
            from starseq.jobs._search import Search

            machine = Machine(together, {name: values.pop(name) for name in where.split()})
            if search:
                values["search"] = Search(**{name: values.pop(name) for name in search.split()})
            return verb(**values, where=machine)

        own = inspect.signature(verb, eval_str=True, locals={"Search": Any}).parameters.values()
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_OPTIONS[name][1], annotation=_OPTIONS[name][0]
            )
            for name in (*search.split(), *where.split())
        ]
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.name not in ("search", "where")
        ]
        command.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        return command

    return decorate
