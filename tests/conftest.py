"""For all tests: hypothesis without deadlines, since shared machines stall, and in CI with the same examples every time."""

import os

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a GPU machine runs tests/test_gpu.py without it
    pass
else:
    settings.register_profile(
        "starseq", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("starseq")
