"""Which network interface the collectives of a run use."""

from __future__ import annotations

LOOPBACK_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Environment of all processes of a run on one machine: gloo, NCCL and RCCL, which do not ask who connects, would
otherwise listen on the interface of the host's name or on any that is up."""
