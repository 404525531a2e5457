"""Which tokens have states of their own where inserted tokens last, on CPU and GPU alike. docs/algorithm.md, section 8."""

ALIVE = 1e-7
"""Of three frames' probabilities multiplied. Less where p is small: another token would begin at p, this one stands at 1 - p."""
FEW, ALIVE_OF_FEW = 400, 1.5e-8
"""Of so few tokens all may be dead at once, if each is as likely as the others, and together be more than nothing. On a GPU,
where as many as these alive would be too many for registers, none is dead."""
ODDS = 1e2
"""(1 - p) / p counts up to here."""
DENSE = 128
"""A vocabulary of so many tokens has no dead ones on a CPU."""
CHUNK = 16
"""Frames for which a token is alive or dead."""
