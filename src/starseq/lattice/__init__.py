"""Fast forward-backward and Viterbi over banded graphs: torch (any device) and numba (CPU). Knows states, never tokens."""
