#!/bin/bash
# `sbatch --wait ci/slurm.sh` from the project's folder; its exit code is pytest's. Copy beside ci/llmperf.sh.
#SBATCH --job-name=llmperf-h200
#SBATCH --gres=gpu:h200:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --exclusive
#SBATCH --time=06:00:00
#SBATCH --signal=B:INT@600
#SBATCH --output=llmperf-%j.txt
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
export KIND="${KIND:-h200}" WHEEL="${WHEEL:-ci/pytest_llmperf-0.1.0-py3-none-any.whl}"
exec sh ci/llmperf.sh "$@"
