#!/bin/bash
# `sbatch --wait ci/ray-slurm.sh tests/test_service.py`: a Ray cluster on the nodes of the job, and pytest on the first of
# them. The load comes from all nodes. The exit code is pytest's; the end of the job ends the cluster.
#SBATCH --job-name=llmperf-load
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --output=llmperf-load-%j.txt
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091  # the project's environment
. "${VENV:-.venv}/bin/activate"  # on a file system that all nodes share
export RAY_worker_niceness=0 RAY_DISABLE_USAGE_STATS=1
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
CPUS=${SLURM_CPUS_PER_TASK:-8}
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
srun --nodes=1 --ntasks=1 --nodelist="$HEAD" --overlap \
  ray start --block --head --port=6379 --ray-client-server-port=10001 --num-cpus="$CPUS" &
until python -c "import socket; socket.create_connection(('$HEAD', 10001), 1)" 2> /dev/null; do sleep 1; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$HEAD" --overlap \
    ray start --block --address="$HEAD:6379" --num-cpus="$CPUS" &
fi
until [ "$(ray status --address="$HEAD:6379" 2> /dev/null | grep -c ' node_')" -ge "$SLURM_JOB_NUM_NODES" ]; do sleep 1; done
pytest --llmperf-set=load_hosts="ray://$HEAD:10001" "$@"
