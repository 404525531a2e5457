"""The command `starseq`: one file, one verb, found by being there.

A verb reads options, calls its job, prints what the job returns. Jobs are imported inside their verb, so that
`starseq --help` imports neither torch nor numba.
"""

from __future__ import annotations

import importlib
import pkgutil

from starseq.cli._app import app, main

__all__ = ["app", "main"]

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
