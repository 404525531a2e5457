"""One process of a job that several do: the commands of its arguments, as `starseq` runs them, one after the other.

With KILLED=RANK the process of this rank is killed in its third row, when the first has done its part.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from starseq import cli
from starseq.jobs import _ranks, _stream


def dies(rank: int, flag: Path) -> None:
    finish, begun, rows = _ranks.Ranks.finish, _stream.Job.begun, list[int]()

    def finished(ranks: _ranks.Ranks) -> None:
        flag.touch()
        finish(ranks)

    def counted(*arguments: Any) -> Any:
        rows.append(0)
        if len(rows) == 3:
            while not flag.exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return begun(*arguments)

    _ranks.Ranks.finish = finished  # type: ignore[method-assign]
    if int(os.environ.get("RANK") or os.environ["SLURM_PROCID"]) == rank:
        _stream.Job.begun = counted  # type: ignore[method-assign]


def main(commands: str) -> None:
    if "KILLED" in os.environ:
        dies(int(os.environ["KILLED"]), Path(os.environ["FLAG"]))
    for command in json.loads(commands):
        sys.argv = ["starseq", *command]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
