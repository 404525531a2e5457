"""Fast forward-backward and Viterbi over graphs: torch (any device), numba (CPU) and Triton (CUDA).

banded_*: graphs whose arcs are scored elsewhere. Knows states, never tokens. lasting_*: graphs in which inserted tokens last; there
a state *is* a token that stands, so these read the vocabulary themselves (`gaps`).
"""
