#!/usr/bin/env bash
# Runs a command in vime's ROCm container with what a run needs: docker/run.sh vime train experiment=qwen3_8b_dapo_mi355x
# VIME_IMAGE names another image; the current folder is /workspace. Masks of this shell are handed on.
set -euo pipefail

masks=()
for variable in HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; do
  if [[ -n "${!variable+set}" ]]; then
    masks+=(--env "$variable")
  fi
done

# Kernel driver and render nodes; host IPC for /dev/shm and for memory handles between processes, which need ptrace.
exec docker run --rm --interactive \
  --device /dev/kfd --device /dev/dri --group-add video --group-add render \
  --ipc host --network host \
  --cap-add SYS_PTRACE --security-opt seccomp=unconfined \
  --ulimit nofile=1048576:1048576 --ulimit memlock=-1:-1 \
  --volume "$PWD:/workspace" --workdir /workspace \
  "${masks[@]}" \
  "${VIME_IMAGE:-vime-rocm}" "$@"
