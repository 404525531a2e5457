"""From log-probabilities to text: the best transcript, its alignment, and what fills its holes."""
