"""From logits to the scores of a label graph's arcs, one pass over the vocabulary, and one back."""
