"""Runs every Triton kernel once on small odd shapes: what benchmarks/gpu.sh puts under compute-sanitizer."""

import functools

import torch

import starseq
from starseq import op
from starseq.lattice import banded_triton
from starseq.models.depthwise import DepthwiseConv
from starseq.models.padding import InstanceNorm

torch.manual_seed(0)
for frames, vocabulary, labels in ((7, 13, 3), (5, 1_203, 2), (37, 29, 70)):
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(frames, 3, vocabulary, device="cuda", dtype=dtype, requires_grad=True)
        targets = torch.randint(1, vocabulary, (3, labels), device="cuda")
        targets[2, 0] = 10**9  # never read out of bounds
        lengths = torch.tensor([frames, frames - 2, frames], device="cuda"), torch.tensor([labels, 1, 2], device="cuda")
        stc = functools.partial(starseq.stc_loss, penalty=-0.7)
        published_stc = functools.partial(stc, merge_repeats=False)
        for loss in (published_stc, starseq.ctc_loss, starseq.selfless_ctc_loss):
            for reduction in ("mean", "sum"):
                loss(logits, targets, *lengths, zero_infinity=True, reduction=reduction).backward()
        published_stc(logits, targets, *lengths, return_inserted=True)
        stc(logits, targets, *lengths, return_inserted=True, zero_infinity=True)[0].backward()
        starseq.STCLoss(zero_infinity=True).cuda()(logits, targets, *lengths).backward()
        for criterion in ("stc", "ctc"):
            penalty = torch.full((3, labels + 1), -0.7, device="cuda") if criterion == "stc" else None
            inputs = (logits.detach(), targets, *lengths, penalty)
            options = op.Options(criterion, merge_repeats=False, backend="triton", inserted=criterion == "stc")
            graph = op.label_graph(inputs, options)
            scores = op.scores(inputs, graph, options)
            banded_triton.forward_backward(scores.stay, scores.enter, graph.topology, lengths[0])
            banded_triton.viterbi(scores.stay, scores.enter, graph.topology, lengths[0])
for height, width in ((3, 7), (5, 413), (64, 200)):
    for dtype in (torch.float32, torch.bfloat16):
        images = torch.randn(3, 5, height, width, device="cuda", dtype=dtype, requires_grad=True)
        InstanceNorm(5).cuda()(images, torch.tensor([width, 2, 0], device="cuda")).sum().backward()
        for kernel in (3, 11):
            DepthwiseConv(5, kernel).cuda()(images.detach().requires_grad_()).sum().backward()
torch.cuda.synchronize()
print("every kernel ran")
