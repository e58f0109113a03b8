"""AMD Instinct (ROCm) for vime: accelerator and IPC weight synchronisation."""
