"""The command `starseq`, also as `python -m starseq`. Where the loss alone is installed it says what is missing."""

from __future__ import annotations

import sys

from starseq.extras import STOPPED, missing


def main() -> None:
    try:
        from starseq.cli import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(f"starseq: {missing(error.name)}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write(f"starseq: {STOPPED}\n")
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
