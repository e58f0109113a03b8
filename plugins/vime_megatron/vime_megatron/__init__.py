"""Megatron-Core training for vime, on CPU, ROCm and CUDA."""
