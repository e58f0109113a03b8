"""Which network interface the collectives of a run use."""

from __future__ import annotations


def collective_environment(interface: str) -> dict[str, str]:
    """What makes gloo, NCCL and RCCL use one network interface, by its name."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


LOOPBACK_ENVIRONMENT = collective_environment("lo")
"""Environment of all processes of a run on one machine: gloo, NCCL and RCCL, which do not ask who connects, would
otherwise listen on the interface of the host's name or on any that is up."""
