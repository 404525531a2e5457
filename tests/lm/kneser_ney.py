"""Interpolated modified Kneser-Ney by the book: dictionaries, every formula spelled out, nothing shared with what it checks."""

import math
from collections import Counter


def model(sentences, order, thresholds=None, allowed=None, fallback=(0.5, 1.0, 1.5)):
    """{n-gram: (p, backoff or None)} for every n-gram that is not pruned, as tuples of words."""
    thresholds = thresholds or [0] * order
    plain = {n: Counter() for n in range(1, order + 1)}
    for sentence in sentences:
        words = ["<s>", *sentence, "</s>"]
        for n in range(1, order + 1):
            for end in range(max(1, n - 1), len(words)):
                plain[n][tuple(words[end - n + 1 : end + 1])] += 1
    # Below the highest order an n-gram counts the words that were seen before it, unless it begins with <s>.
    adjusted = {order: dict(plain[order])}
    for n in range(1, order):
        before = Counter(gram[1:] for gram in plain[n + 1])
        adjusted[n] = {gram: plain[n][gram] if gram[0] == "<s>" else before[gram] for gram in plain[n]}

    def pruned(gram):
        if len(gram) == 1 and gram[0] == "</s>":
            return False
        unknown = allowed is not None and any(word not in allowed and word not in ("<s>", "</s>") for word in gram)
        return unknown or plain[len(gram)][gram] <= thresholds[len(gram) - 1]

    discounts = {}
    for n in range(1, order + 1):
        of = Counter(adjusted[n].values())
        discounts[n] = (0.0, *fallback)
        if of[1] and of[2] and of[3]:
            y = of[1] / (of[1] + 2 * of[2])
            found = [c - (c + 1) * y * of[c + 1] / of[c] for c in (1, 2, 3)]
            if all(0 <= value <= c for c, value in zip((1, 2, 3), found, strict=True)):
                discounts[n] = (0.0, *found)

    def gamma(context):
        n = len(context) + 1
        grams = {gram: count for gram, count in adjusted[n].items() if gram[:-1] == context}
        left = sum(count if pruned(gram) else discounts[n][min(count, 3)] for gram, count in grams.items())
        return left / sum(grams.values()) if grams else 1.0

    vocabulary = [gram for gram in adjusted[1] if not pruned(gram)]

    def p(gram):
        n = len(gram)
        if n == 0:
            return 1 / (len(vocabulary) + 1)  # and <unk>
        own = 0.0
        if gram in adjusted[n]:
            count = adjusted[n][gram]
            total = sum(c for other, c in adjusted[n].items() if other[:-1] == gram[:-1])
            own = (count - discounts[n][min(count, 3)]) / total
        return own + gamma(gram[:-1]) * p(gram[1:])

    result = {}
    for n in range(1, order + 1):
        for gram in adjusted[n]:
            if not pruned(gram):
                result[gram] = (p(gram), None if n == order else 1.0 if gram[-1] == "</s>" else gamma(gram))
    result["<unk>",] = (p(("<unk>",)), None if order == 1 else 1.0)
    result["<s>",] = (1.0, None if order == 1 else gamma(("<s>",)))
    return result


def logs(model):
    return {gram: (log10(p), None if b is None else log10(b)) for gram, (p, b) in model.items()}


def log10(p):
    return math.log10(p) if p else -99.0  # as ARPA files have it
