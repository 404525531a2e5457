"""Breaks the code in known ways, one at a time, and expects the suite to notice.

    python tests/mutants.py            all of them, two at a time; exits 1 if one survives, or does not apply any more
    python tests/mutants.py numba      those whose name contains "numba"

First all tests that are used run without a mutation. Then each mutation is applied to one of two copies of src/ and tests/, and
taken back. One of compiled code has a numba cache of its own, as numba sees no change in an inlined file.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    name: str
    file: str  # under src/starseq
    old: str  # occurs there exactly once
    new: str
    tests: str  # arguments of pytest: the narrowest selection that notices


def vectors(rung: str, stems: str = "stc:") -> str:
    """The published vectors of a file on a rung of the ladder."""
    return f"tests/test_loss_ladder.py -k 'vectors and {rung} and {stems}'"


def numerics(rung: str, test: str) -> str:
    return f"tests/test_loss_numerics.py -k '{rung} and {test}'"


EMIT_TORCH, EMIT_NUMBA = "emissions/vocabulary_torch.py", "emissions/vocabulary_numba.py"
LATTICE_TORCH, LATTICE_NUMBA = "lattice/banded_torch.py", "lattice/banded_numba.py"
FUSED_NUMBA, KNOWN_NUMBA = "op/fused_numba.py", "op/known_numba.py"
LINEAR_NUMBA, SCALED_NUMBA = "emissions/linear_numba.py", "lattice/scaled_numba.py"
TORCH, NUMBA, SINGLE = vectors("torch-float64"), vectors("numba-float64"), vectors("numba-float32")
PENALTY = "tests/test_penalty.py"
AUGMENT = "tests/data/test_augment.py"
MIX = "tests/lm/test_mix.py"
BEHAVIOUR, LADDER = "tests/test_loss_behaviour.py", "tests/test_loss_ladder.py"

LASTING, LASTING_NUMBA = "tests/test_loss_lasting.py -k 'vectors and torch-float64'", "lattice/lasting_numba.py"
LASTING_TORCH, LASTING_TRITON = "lattice/lasting_torch.py", "lattice/lasting_triton.py"
INTERPRETED = "tests/test_triton_interpreted.py -k lasting_in_tiles"
DEAD = "tests/op/test_lasting_numba.py"
DEAD_TRITON = "tests/test_triton_interpreted.py -k dead_tokens"
ALIGN_LASTING = "tests/decode/test_align_lasting.py"


def lasting(test: str) -> str:
    return f"tests/test_loss_lasting.py -k 'numba and {test}'"


MUTANTS = [
    # tokens that last
    Mutant("lasting, torch: the label's own token begins right after it", LASTING_TORCH,
           "return torch.where(self.is_label, without, rest)", "return torch.where(self.is_label, rest, rest)", LASTING),
    Mutant("lasting, torch: equal labels need no frame between", LASTING_TORCH,
           " & (stands != self.following[:, :, None])", " & (stands != NONE - 1)",
           "tests/test_loss_lasting.py -k 'without_an_alignment and torch'"),
    Mutant("lasting, torch: insertions count what goes on", LASTING_TORCH,
           "(totals + begun).exp() - (stood + begun).exp()", "(totals + begun).exp()", LASTING),
    Mutant("lasting, torch: of equals another token begins", LASTING_TORCH,
           "_Step(before >= others, begins", "_Step(before > others, begins", f"{ALIGN_LASTING} -k equals"),
    Mutant("lasting, numba: the label's own token begins right after it", LASTING_NUMBA,
           "kept.begun[t, 1, l] = p * (others + of_next)", "kept.begun[t, 1, l] = p * total", lasting("vectors")),
    Mutant("lasting, numba: equal labels need no frame between", LASTING_NUMBA,
           "leaves[l] = others + rows.differs[l] * own", "leaves[l] = others + own", lasting("vectors")),
    Mutant("lasting, numba: insertions count what goes on", LASTING_NUMBA,
           "begun[1 if j == rows.label[l] else 0, l] - p * raised[l] * states[j, l]",
           "begun[1 if j == rows.label[l] else 0, l]", lasting("vectors")),
    Mutant("lasting, numba: frames that are not kept are not made again", LASTING_NUMBA,
           "            _make_again(rows, slots, chunk, kept, work)\n", "", lasting("some_frames_are_kept")),
    Mutant("lasting, numba: no sum is too large", LASTING_NUMBA,
           "if not share * follows < _LARGE:", "if False:", lasting("far_apart")),
    Mutant("lasting, numba: a small weight closes its gap", "op/lasting_numba.py",
           "if weights[l] > -np.inf and p[l] < _LEAST:", "if False:", "tests/test_loss_lasting.py -k nobody"),
    Mutant("lasting, numba: dead tokens never stand for two frames", "emissions/slots_numba.py",
           "pair[t] = _sum_of(row, following, True, like) * inverse[t] * inverse[t + 1]", "pair[t] = 0.0", DEAD),
    Mutant("lasting, numba: nothing is alive", "op/lasting_numba.py",
           "return alive / min(most, ODDS) ** 3", "return 1.0 + 0 * alive / most", DEAD),
    Mutant("lasting, numba: nobody tells the gradient of pairs", "emissions/slots_numba.py",
           "factor = one - two * y", "factor = one - 0.0 * two * y", DEAD),
    Mutant("compiled: the gradient is laid out as the logits", "op/compiled.py",
           "batch, saved, options).contiguous()", "batch, saved, options)",
           "tests/test_loss_compile.py -k 'custom_operators and numba and -stc'"),
    Mutant("lasting, triton: the label's own token begins right after it", LASTING_TRITON,
           "without[None, :], begun[None, :])", "begun[None, :], begun[None, :])", INTERPRETED),
    Mutant("lasting, triton: the same in registers", LASTING_TRITON,
           "of_label * (of_own * stays + some_own)", "of_label * (of_own * stays + some)", DEAD_TRITON),
    Mutant("lasting, triton: equal labels need no frame between", LASTING_TRITON,
           "leaves = (others + is_other * own) * raised", "leaves = (others + own) * raised", INTERPRETED),
    Mutant("lasting, triton: dead tokens do not stand for two frames", LASTING_TRITON,
           "of_dead = begun * dead + going_on * begun_before * pair_before", "of_dead = begun * dead", DEAD_TRITON),
    Mutant("lasting, triton: what begins to be alive has stood before", "op/lasting_triton.py",
           "return result + tl.where(stands[None, :], 0.0,", "return tl.where(stands[None, :], 0.0,", DEAD_TRITON),
    Mutant("lasting: the softmax has no gradient", "op/readable.py",
           "x.exp() - posteriors if options.normalized else", "-posteriors if options.normalized else", LASTING),
    Mutant("lasting: insertions without a gradient are not made", "op/readable.py",
           "both = options.differentiable or options.inserted", "both = options.differentiable",
           "tests/test_loss_lasting.py -k 'without_a_gradient and torch'"),
    Mutant("lasting: a filling for every frame", "decode/align.py",
           "begins=place != torch.nn.functional.pad(place, (1, 0), value=NONE)[:, :-1]", "begins=place != NONE",
           f"{ALIGN_LASTING} -k filled_in_once"),
    Mutant("lasting: what goes on is missing, too", "decode/align.py",
           "begins = stands[..., :-1] - goes_on", "begins = stands[..., :-1].clone()", f"{ALIGN_LASTING} -k filled_in_once"),
    # star for star\t
    Mutant("torch: star for star without the label", EMIT_TORCH,
           "return torch.where(left_out == top, others, star + torch.log1p(-share))", "return star.expand_as(left_out)",
           TORCH),
    Mutant("numba: star for star without the label", EMIT_NUMBA,
           "without = select(x == highest, others, star - widen(exp(x - highest)))", "without = star", NUMBA),
    Mutant("numba: one penalty for all gaps stays a view of one number", EMIT_NUMBA,
           "to(torch.float64).contiguous().numpy()", "to(torch.float64).numpy()", "tests/op -k one_penalty"),
    Mutant("criterion: nothing is left out", "criteria/stc.py",
           "around[:, :-1], around[:, 1:]", "around[:, :-1], torch.full_like(around[:, 1:], NONE)", TORCH),
    Mutant("criterion, merged repeats: nothing is left out", "criteria/stc.py",
           "left_out[:, :-1:2] = wide", "left_out[:0, :-1:2] = wide", LASTING),
    Mutant("criterion: repeats are merged whatever is said", "criteria/stc.py",
           "    if merge_repeats:\n", "    if True:\n", TORCH),
    Mutant("runs: all are read with repeats merged", "config/schema.py",
           'self.criterion.settings.get("merge_repeats", True)', "True", "tests/test_config.py -k how_its_runs"),
    # lambda dropped
    Mutant("torch: no lambda on the first state's star", EMIT_TORCH,
           "log_star = tokens.star_weight.to(x.dtype)[:, None]",
           "log_star = tokens.star_weight.to(x.dtype).index_fill(1, torch.tensor(0), 0.0)[:, None]", TORCH),
    Mutant("numba: no lambda on the first state's star", EMIT_NUMBA,
           "columns.share[b, s] = math.exp(weight[s])", "columns.share[b, s] = math.exp(weight[s]) if s else 1.0", NUMBA),
    Mutant("torch: no lambda in the gradient", EMIT_TORCH,
           "weighted = (outside_stay + tokens.star_weight[:, None])", "weighted = outside_stay", TORCH),
    Mutant("numba: no lambda in the gradient", EMIT_NUMBA,
           "factors[r, 0] = _weigh_stars(before, after, log_z, weight, outsides[r, :states], like)",
           "factors[r, 0] = _weigh_stars(before, after, log_z, weight, outsides[r, :states], like)\n"
           "            outsides[r, 0] -= weight[0]", NUMBA),
    # subtraction for exclusion
    Mutant("torch: subtraction for exclusion", EMIT_TORCH,
           "torch.where(left_out == top, others, star + torch.log1p(-share))", "star + torch.log1p(-share)",
           numerics("torch", "dominates")),
    Mutant("numba: subtraction for exclusion", EMIT_NUMBA,
           "return second + math.log(others) if score == top else log_star", "return log_star",
           numerics("numba-float64", "dominates")),
    Mutant("torch: subtraction in the gradient", EMIT_TORCH,
           "torch.where(largest, others, top + (total - own).log())", "top + (total - own).log()",
           numerics("torch", "dominates")),
    Mutant("numba: subtraction in the gradient", EMIT_NUMBA,
           "enough = rest > _ENOUGH * whole", "enough = rest > -1.0 * whole",
           numerics("numba-float64", "dominates")),
    # padding read
    Mutant("torch: frames past the length are walked", LATTICE_TORCH,
           "log_alpha[:, t + 1] = torch.where((t < lengths)[:, None], after, before)", "log_alpha[:, t + 1] = after",
           numerics("torch-float64", "padding")),
    Mutant("torch: frames past the length are walked backward", LATTICE_TORCH,
           "log_beta[:, t] = torch.where((t < lengths)[:, None], before, after)", "log_beta[:, t] = before",
           numerics("torch-float64", "padding")),
    Mutant("numba: frames past the length are walked", FUSED_NUMBA,
           "log_z, stats_of, log_alpha, log_beta = sums\n    norm", "log_z, stats_of, log_alpha, log_beta = sums\n"
           "    frames = scores.shape[1]\n    norm", numerics("numba-float64", "padding")),
    Mutant("numba: frames past the length are walked, part by part", LATTICE_NUMBA,
           "frames, states = lengths[b], num_states[b]", "frames, states = log_stay.shape[1], num_states[b]",
           "tests/lattice/test_banded.py -k numba"),
    Mutant("torch: frames past the length get a gradient", EMIT_TORCH,
           "result.masked_fill(past[:, :, None], 0))", "result)", numerics("torch-float64", "padding")),
    Mutant("numba: frames past the length get a gradient", EMIT_NUMBA,
           "inside = max(t, min(stop, lengths[b])) if log_z[b] != -np.inf else t", "inside = stop if log_z[b] != -np.inf else t",
           numerics("numba-float64", "padding")),
    Mutant("torch: the label past the length is left out of the last star", EMIT_TORCH,
           "left_out.masked_fill(last | (left_out == tokens.blank), NONE)", "left_out",
           f"{LADDER} -k 'brute_force and torch-float64-published_stc'"),
    # the last state's star
    Mutant("torch: no star in the last state", EMIT_TORCH,
           "Scores(torch.logaddexp(stay, log_star), enter",
           "Scores(torch.cat([torch.logaddexp(stay, log_star)[..., :-1], stay[..., -1:]], 2), enter", TORCH),
    Mutant("numba: no star in the last state", EMIT_NUMBA,
           "columns.share[b, s] = math.exp(weight[s])",
           "columns.share[b, s] = math.exp(weight[s]) if s + 1 < states else 0.0", NUMBA),
    Mutant("criterion: no star in the last state", "criteria/stc.py",
           "Tokens(blank, enter, None, log_penalty, left_out)",
           "Tokens(blank, enter, None, torch.cat([log_penalty[:, :-1], log_penalty[:, -1:] - torch.inf], 1), left_out)",
           TORCH),
    # closed gaps, CTC's skips and ends
    Mutant("criterion: closed gaps leave a label out", "criteria/stc.py",
           "if log_penalty.stride(1) != 0:", "if False:",
           "tests/test_loss_star.py -k 'closed_gaps and torch'"),
    Mutant("criterion: CTC joins repeats", "criteria/ctc.py",
           "labels[:, 1:] != labels[:, :-1]", "labels[:, 1:] != blank", vectors("torch-float64", "ctc:")),
    Mutant("numba: CTC joins repeats", KNOWN_NUMBA,
           "u > 0 and targets[b, u] != targets[b, u - 1]", "u > 0", vectors("numba-float64", "ctc:")),
    Mutant("numba: closed gaps leave a label out", KNOWN_NUMBA,
           "NONE if s == width or closed else targets[b, s]", "NONE if s == width else targets[b, s]",
           "tests/test_loss_star.py -k 'closed_gaps and numba'"),
    Mutant("criterion: CTC must end in a blank", "criteria/ctc.py",
           "ends=2", "ends=1", vectors("torch-float64", "ctc:")),
    Mutant("numba: states that lie on a path are left out", LATTICE_NUMBA,
           "low = max(0, states - 2 - width * (frames - step))", "low = max(0, states - width * (frames - step))",
           vectors("numba-float64", "ctc:")),
    # precision, infinities, NaN
    Mutant("numba: log-sums in float32", "lattice/elementary_numba.py",
           "return larger + widen(log1p(exp(narrow(smaller - base, like))))",
           "return widen(narrow(larger, like)) + widen(log1p(exp(narrow(smaller - base, like))))",
           "tests/test_loss_precision.py -k 'numba-strong-selfless_ctc'"),
    Mutant("numba: exp of NaN is a number", "lattice/elementary_numba.py",
           "bounded = select(x < _SMALLEST, _SMALLEST, x)", "bounded = select(x > _SMALLEST, x, _SMALLEST)",
           "tests/lattice/test_elementary.py -k edges"),
    Mutant("torch: an infeasible utterance has a gradient", EMIT_TORCH,
           "result.masked_fill((log_z == -torch.inf)[:, None, None], 0).masked_fill", "result.masked_fill", TORCH),
    Mutant("numba: the star loses a token", EMIT_NUMBA,
           "before, after = row[:blank], row[blank + 1 :]", "before, after = row[:blank], row[blank + 2 :]",
           f"{LADDER} -k 'larger and wide and numba and leftmost'"),
    Mutant("numba: vectors are written past the end", "lattice/lanes_numba.py",
           'builder.icmp_signed("<", _constants(_I32, range(count)), limit)',
           'builder.icmp_signed("<=", _constants(_I32, range(count)), limit)', "tests/lattice/test_lanes.py"),
    Mutant("numba: scores that are no probabilities overflow", EMIT_NUMBA,
           "known = count if normalized else 0", "known = count", "tests/op/test_fused_numba.py -k any_size"),
    Mutant("numba: zero_infinity zeroes nothing", KNOWN_NUMBA,
           "zero_infinity and log_z[b] == -np.inf", "zero_infinity and log_z[b] == np.inf",
           numerics("numba", "zero_infinity")),
    Mutant("numba: the mean divides by no labels", KNOWN_NUMBA,
           "loss / max(target_lengths[b], 1)", "loss / target_lengths[b]", "tests/op/test_fused_numba.py -k reductions"),
    Mutant("numba: a penalty of NaN is let through", KNOWN_NUMBA, "if not weights[b, u] <= 0:", "if weights[b, u] > 0:",
           "tests/test_loss_errors.py -k 'numba and nan'"),
    Mutant("fused: the utterances that are left are forgotten", FUSED_NUMBA, "not scaled_of(memory, B, ends).all()", "False",
           "tests/op/test_fused_numba.py -k logarithms"),
    Mutant("fused: no room for the blanks between repeats", FUSED_NUMBA, "return labels + repeats", "return labels",
           "tests/op/test_fused_numba.py -k logarithms"),
    Mutant("fused: a gradient without any alignment", FUSED_NUMBA, "t if log_z[b] == -np.inf else max(", "max(t, ",
           "tests/op/test_fused_numba.py -k logarithms"),
    Mutant("lanes: strides are not looked at", "lattice/lanes_numba.py", 'kind.layout != "C"', "False",
           "tests/lattice/test_lanes.py -k contiguous"),
    Mutant("fused: both ways are compiled at once", FUSED_NUMBA, "(_gradient, not scaled.all())", "(_gradient, True)",
           "tests/op/test_fused_numba.py -k logarithms"),
    Mutant("ahead: the loss's own gradient is left out", "op/reduction.py", "gradient *= grad\n", "gradient *= 1\n",
           "tests/op/test_fused_numba.py -k ahead"),
    Mutant("ahead: the losses' own gradients are left out", "op/reduction.py", "gradient *= grad.view(", "gradient * grad.view(",
           "tests/op/test_fused_numba.py -k ahead"),
    Mutant("ahead: infinity times nothing", "op/reduction.py", "if not bool(grad.isfinite().all()):", "if False:",
           "tests/op/test_fused_numba.py -k whatever"),
    Mutant("compiled: infinity times nothing", "op/reduction.py", "torch.where(gradient == 0, gradient,",
           "torch.where(gradient != gradient, gradient,",
           "tests/test_loss_compile.py -k may_be_infinite"),
    Mutant("few large utterances: a frame that is no good is forgotten", FUSED_NUMBA,
           "            well[b] = False", "            well[b] = True",
           "tests/op/test_fused_numba.py -k split_by_frames"),
    Mutant("declared: published STC has no stars", "criteria/stc.py",
           "FORM_OF_KEPT_REPEATS = Form(merging=False, stars=True)", "FORM_OF_KEPT_REPEATS = Form(merging=False, stars=False)",
           "tests/criteria/test_graphs.py -k form"),
    Mutant("ahead: what is given away is kept", "op/reduction.py",
           "gradient, self._gradient = self._gradient, None", "gradient = self._gradient",
           "tests/op/test_fused_numba.py -k ahead"),
    Mutant("zero_infinity zeroes nothing", "op/reduction.py", "losses == torch.inf", "losses == -torch.inf",
           numerics("torch", "zero_infinity")),
    # without logarithms: float32
    Mutant("linear: star for star without the label", LINEAR_NUMBA,
           "without = select(x == 1.0, others, star - x)", "without = star + 0.0 * x", SINGLE),
    Mutant("linear: subtraction for exclusion", LINEAR_NUMBA,
           "without = select(x == 1.0, others, star - x)", "without = star - x", numerics("numba-float32", "dominates")),
    Mutant("linear: subtraction in the gradient", LINEAR_NUMBA, "if not wholes[q] < _FEW:", "if not wholes[q] < np.inf:",
           numerics("numba-float32", "dominates")),
    Mutant("linear: no lambda in the gradient", LINEAR_NUMBA,
           "part, column = loop * share[s], left_out[s] * LANES", "part, column = loop, left_out[s] * LANES", SINGLE),
    Mutant("linear: a larger score makes nothing smaller", LINEAR_NUMBA,
           "(smaller + equal) * exp(former - found)", "smaller + equal", "tests/emissions/test_linear.py"),
    Mutant("linear: the others are not summed again", LINEAR_NUMBA,
           "of_others[r] = others_of(row, blank_token, of_top[r], of_others[r], like)", "of_others[r] += 0.0",
           "tests/emissions/test_linear.py"),
    Mutant("scaled: the powers of two are forgotten", SCALED_NUMBA, "return np.float64(power)", "return 0.0",
           "tests/lattice/test_scaled.py"),
    Mutant("scaled: numbers too far apart are no obstacle", SCALED_NUMBA, "if not abs(more) < _SPAN:", "if not abs(more) < 2000:",
           "tests/lattice/test_scaled.py"),
    Mutant("scaled: CTC joins repeats", SCALED_NUMBA, "load(sums, now + i - 2, 0.0, like) * load(skip, i, 0.0, like)",
           "load(sums, now + i - 2, 0.0, like)", vectors("numba-float32", "ctc:")),
    Mutant("scaled: frames past the length get a gradient", FUSED_NUMBA, "else max(t, min(stop, lengths[b]))",
           "else stop", numerics("numba-float32", "padding")),
    # insertions and penalty
    Mutant("the penalty's gradient has the wrong sign", "op/__init__.py",
           "(-insertions * for_each(", "(insertions * for_each(", f"{LADDER} -k 'gradcheck_stc and numba'"),
    Mutant("the schedule moves at double speed", "penalty/__init__.py",
           '"""One optimiser step is done."""\n        self.step += 1', '"""One optimiser step is done."""\n        self.step += 2',
           PENALTY),
    Mutant("the step is not saved", "penalty/__init__.py",
           "float(half_life)\n        self.register_buffer(\"step\", torch.zeros((), dtype=torch.int64))",
           "float(half_life)\n        self.register_buffer(\"step\", torch.zeros((), dtype=torch.int64), persistent=False)",
           PENALTY),
    Mutant("adaptive: a token on two frames is read twice", "penalty/look_numba.py", "token >= 0 and token != last",
           "token >= 0", PENALTY),
    Mutant("adaptive: it looks at every batch", "penalty/__init__.py", "calls.item() % LOOKS == 0", "True", PENALTY),
    Mutant("adaptive: reading nothing is reading everything", "penalty/look_numba.py", "labels[s - 1] + (token >= 0)",
           "labels[s - 1] + 1", PENALTY),
    Mutant("adaptive: what it sees is not checked", "penalty/look_numba.py", "    if bad.any():", "    if False:", PENALTY),
    Mutant("adaptive: labels lie on another path", "penalty/look_numba.py", "best[s - 1] + enter[own]",
           "best[s - 1] + 2 * enter[own]", PENALTY),
    Mutant("adaptive: the star leaves out nothing", "penalty/look_numba.py", "best[s] + stay[column[s]]", "best[s] + stay[known]",
           PENALTY),
    Mutant("adaptive: what is learned by heart lowers p", "penalty/look_torch.py",
           "(held + (held - missing).clamp(min=0))", "missing", PENALTY),
    Mutant("adaptive: it moves without an open gap", "penalty/look_torch.py", "(gaps > 0) & ", "", PENALTY),
    Mutant("align: the label's own token begins beside it", "lattice/lasting_path_numba.py",
           "other = tops[1, l] if v == own[l] else tops[0, l]", "other = tops[0, l]", "tests/decode/test_align_lasting.py"),
    Mutant("align: a token that is inserted again costs nothing", "lattice/lasting_path_numba.py",
           "+ least, np.float64", "- least, np.float64", "tests/decode/test_align_lasting.py"),
    Mutant("adaptive: validation moves it", "loss.py",
           "self.training and torch.is_grad_enabled()", "True", PENALTY),
    Mutant("compiled: a penalty that is a number is a constant", "arguments.py",
           "if torch.compiler.is_compiling():  # added", "if False:  # added", "tests/test_loss_compile.py -k number_that"),
    Mutant("vocal tract: all are shorter", "data/augment.py",
           "dtype=torch.float64) for draw in draws]) * 2 - 1", "dtype=torch.float64) for draw in draws])", AUGMENT),
    Mutant("vocal tract: the scale is straight", "data/augment.py",
           "torch.log1p(factors[:, None] * hertz)", "(torch.log1p(hertz) * factors[:, None])", AUGMENT),
    Mutant("vocal tract: bands lie a third of a band off", "data/augment.py",
           "F, self.top)).mT", "F, self.top) * 0.99).mT", AUGMENT),
    Mutant("tempo: the nearest frame is heard", "data/augment.py", "(place - before).to(", "(place - before).round().to(", AUGMENT),
    Mutant("tempo: padding is heard", "data/augment.py",
           "time.clamp_min(0).minimum(last.clamp_min(0))", "time.clamp(0, T - 1)", AUGMENT),
    Mutant("tempo: a longer batch changes them", "data/augment.py",
           "size = _controls(length, self.warp_step)", "size = weights.shape[1]", AUGMENT),
    Mutant("tempo: padding is warped", "data/augment.py",
           "torch.where(outside.to(x.device)[:, :, None], x, warped.to(x.dtype))", "warped.to(x.dtype)", AUGMENT),
    Mutant("warps: every utterance alike", "data/augment.py", 'f"{id} warp"', '"warp"', AUGMENT),
    Mutant("warps: every pass alike", "data/augment.py", 'epoch, f"{id} warp"', '0, f"{id} warp"', AUGMENT),
    Mutant("warps: every seed alike", "data/augment.py", 'seed, epoch, f"{id} warp"', '0, epoch, f"{id} warp"', AUGMENT),
    Mutant("warps: in float32", "data/augment.py", "x.to(torch.promote_types(x.dtype, torch.float32))", "x.float()", AUGMENT),
    # labels
    Mutant("whole words are missing: gaps before spaces", "text/gaps.py",
           "(True, *map(str.isspace, labels[:-1]), True)", "(True, *map(str.isspace, labels[1:]), True)",
           "tests/text/test_gaps.py"),
    Mutant("whole words are missing: the tokeniser forgets it", "text/tokeniser.py",
           "marked=marked, missing=self.missing)", "marked=marked)", "tests/test_config.py -k tokeniser"),
    Mutant("a Transformer of characters: the space is unknown", "jobs/lm.py",
           "ranked = [SPACE if label in spelled.values() else label for label in labels]", "ranked = labels",
           "tests/jobs/test_lm.py -k space"),
    # language models
    Mutant("mix: a word alone before the last", "lm/ngram.py",
           "        begins[:, 0] = True\n        log_p = self", "        begins[:, -2] = True\n        log_p = self", MIX),
    Mutant("mix: backoffs of one", "lm/mix.py",
           "np.clip(left, 0.0, None) / np.clip(left_below, 1e-9, None)", "np.clip(left, 1.0, 1.0)", MIX),
    Mutant("mix: an order by itself", "lm/mix.py",
           "parts = [orders[n - 1], longer[:, :-1], longer[:, 1:]]", "parts = [orders[n - 1]]", MIX),
    Mutant("mix: <s> is predicted", "lm/mix.py", "rows[rows[:, -1] != begin]", "rows", MIX),
    # kernels of the models
    Mutant("depthwise: the gradient's kernel is not turned", "models/depthwise_triton.py",
           "K * K - 1 - tap if TURNED else tap", "tap", "tests/models/test_depthwise.py"),
    Mutant("depthwise: going down, the gradient's kernel is not turned", "models/depthwise_triton.py",
           "-1 if TURNED else 1  #", "1  #", "tests/models/test_depthwise.py"),
    Mutant("depthwise: going down, the rows of the gradient are exchanged", "models/depthwise_triton.py",
           "        s0 += below * left", "        s0 += above * left", "tests/models/test_depthwise.py"),
    Mutant("depthwise: going down, what is right of the image is read", "models/depthwise_triton.py",
           "mask=column + 1 < W", "mask=column < W", "tests/models/test_depthwise.py"),
    Mutant("norm: the padding counts in the variance", "models/padding_triton.py",
           "        centred = tl.where(inside, x - mean, 0.0)", "        centred = x - mean",
           "tests/models/test_padding_triton.py"),
    Mutant("depthwise: a row runs into the next", "models/depthwise_triton.py",
           "inside = (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)",
           "inside = (row + dy >= 0) & (row + dy < H)", "tests/models/test_depthwise.py"),
    # what a program relies on
    Mutant("the mean divides by no labels", "op/reduction.py", "losses / target_lengths.clamp(min=1)", "losses / target_lengths",
           "tests/test_loss_inputs.py -k 'reductions and torch'"),
    Mutant("double backward is silently zero", "op/__init__.py", "if not torch.is_grad_enabled():", "if True:",
           f"{BEHAVIOUR} -k double"),
    Mutant("a fork waits for its parent's threads", "lattice/threads.py",
           "key = (os.getpid(), threads)", "key = (0, threads)", f"{BEHAVIOUR} -k forked"),
    Mutant("a penalty of NaN is let through", "arguments.py", "~(weights <= 0)", "(weights > 0)",
           "tests/test_loss_errors.py -k 'torch and nan'"),
    Mutant("tune: the length alone has a language model's weight", "jobs/_search.py",
           '.get("alone" if self.lm is None else "beam")', '.get("beam")',
           "tests/jobs/test_tune.py -k side_by_side"),
    Mutant("tune: what was tuned before is lost", "jobs/tune.py",
           "tuned = read_tuned(run.folder)", "read_tuned(run.folder)", "tests/jobs/test_tune.py -k side_by_side"),
    Mutant("tune: weights of another lexicon are taken", "jobs/_search.py",
           '(("lm", self.lm), ("lexicon", self.lexicon))', '(("lm", self.lm),)', "tests/jobs/test_tune.py -k lexicon"),
    Mutant("several models: only the first one's opinion counts", "decode/complete.py",
           "am = sum(opinions) / len(opinions)", "am = opinions[0]", "tests/decode/test_complete.py -k several_models"),
    Mutant("several models: only the first one searches", "decode/complete.py",
           "found.append({one.labels: one for one in best})",
           "found.append({} if found else {one.labels: one for one in best})",
           "tests/decode/test_complete.py -k each_of_several"),
    Mutant("pseudo: only the first run's confidence counts", "jobs/_label.py",
           "[sum(shares) / len(shares) for", "[shares[0] for", "tests/jobs/test_pseudo.py -k several_runs"),
]  # fmt: skip


def problem_of(mutant: Mutant, root: Path = ROOT) -> str:
    """Why a mutation does not apply any more; empty if it does."""
    path, tests = root / "src" / "starseq" / mutant.file, root / shlex.split(mutant.tests)[0]
    if not path.exists():
        return f"there is no {mutant.file}"
    if not tests.exists():
        return f"there is no {tests.name}"
    count = path.read_text().count(mutant.old)
    return "" if count == 1 else f"its old text occurs {count} times in {mutant.file}"


def copy_of(root: Path, copy: Path) -> Path:
    """The code and its tests, without what is compiled."""
    for name in ("src", "tests"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(root / "pyproject.toml", copy)
    return copy


def survives(mutant: Mutant, place: Path) -> tuple[bool, str]:
    """Whether its tests pass on the mutated copy of the code; and pytest's last lines.

    What numba compiled before serves all but the mutants of compiled code, which have a cache of their own.
    """
    path = place / "src" / "starseq" / mutant.file
    text, stat = path.read_text(), path.stat()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        with tempfile.TemporaryDirectory() as fresh:
            cache = Path(fresh) if mutant.file.endswith("_numba.py") else place / "cache"
            code, line = pytest(mutant.tests, is_triton(mutant), place, cache)
    finally:
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # or the cache would be out of date
    return code != 1, line  # 1 is tests that failed; others are none selected, or a crash in collecting them


def is_triton(mutant: Mutant) -> bool:
    """Such tests run in Triton's interpreter, at once and not by another process."""
    return mutant.file.endswith("_triton.py")


def pytest(tests: str, interpreted: bool, place: Path, cache: Path) -> tuple[int, str]:
    """Its exit code, and what it says: the first test that failed, and the counts."""
    variables = {"PYTHONPATH": str(place / "src"), "NUMBA_CACHE_DIR": str(cache)}
    if interpreted:
        variables["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
    done = subprocess.run(command, cwd=place, env=os.environ | variables, capture_output=True, text=True)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return done.returncode, "\n    ".join([*(line for line in lines if line.startswith("FAILED")), lines[-1]])


def together(mutants: list[Mutant]) -> list[tuple[str, bool]]:
    """All tests of these mutants, each file's in one run, and whether in the interpreter."""
    expressions: dict[tuple[str, bool], set[str]] = {}
    for mutant in mutants:
        file, *expression = shlex.split(mutant.tests)
        expressions.setdefault((file, is_triton(mutant)), set()).add(expression[1] if expression else "")
    runs = []
    for (file, interpreted), parts in expressions.items():
        chosen = " or ".join(f"({part})" for part in sorted(parts))
        runs.append((file if "" in parts else shlex.join([file, "-k", chosen]), interpreted))
    return runs


def main(part: str = "") -> int:
    chosen = [mutant for mutant in MUTANTS if part in mutant.name]
    start, bad = time.monotonic(), 0
    for mutant in chosen:
        if problem := problem_of(mutant):
            bad += 1
            print(f"DOES NOT APPLY  {mutant.name}: {problem}", flush=True)
    chosen = [mutant for mutant in chosen if not problem_of(mutant)]
    places: SimpleQueue[Path] = SimpleQueue()

    def healthy(tests: str, interpreted: bool) -> tuple[int, str]:
        place = places.get()
        try:
            return pytest(tests, interpreted, place, place / "cache")
        finally:
            places.put(place)

    def mutated(mutant: Mutant) -> tuple[bool, str]:
        place = places.get()
        try:
            return survives(mutant, place)
        finally:
            places.put(place)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for name in ("one", "two"):  # work may go on meanwhile
            places.put(copy_of(ROOT, Path(folder) / name))
        runs = together(chosen)
        for (tests, _), (code, line) in zip(runs, pool.map(healthy, *zip(*runs, strict=True)), strict=True):
            if code != 0:
                bad += 1
                print(f"RED WITHOUT A MUTATION  pytest {tests}\n    {line}", flush=True)
        for mutant, (survived, line) in zip(chosen, pool.map(mutated, chosen), strict=True):
            bad += survived
            print(f"{'SURVIVED' if survived else 'killed  '}  {mutant.name}\n    {line}", flush=True)
    print(f"{len(chosen)} mutants, {bad} problems, {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
