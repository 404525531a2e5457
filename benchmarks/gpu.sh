#!/usr/bin/env bash
# Proof and measurement on a machine with a CUDA GPU, in one go: the GPU tests, compute-sanitizer on each kernel where it is
# installed, and the benchmark. The table, the tests' summary and the sanitizer's verdict are printed; all goes to FOLDER (default: benchmarks/gpu).
#   benchmarks/gpu.sh [FOLDER]
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/gpu}; mkdir -p "$out"
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python3 -m pytest -q -m gpu tests/test_gpu.py tests/models/test_models_gpu.py -p no:cacheprovider --durations=5 2>&1 | tee "$out/tests.txt" | tail -15
python3 -m starseq bench --device cuda --seconds 2 --save "$out/results.csv" --check | tee "$out/bench.txt"
python3 benchmarks/measure.py growth --device cuda --seconds 0.5 --save "$out/results.csv" >"$out/growth.txt"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 120 compute-sanitizer --tool "$tool" python3 benchmarks/kernels.py 2>&1 |
      tee "$out/$tool.txt" | tail -3
  done
else
  echo "compute-sanitizer is not installed: not run"
fi
