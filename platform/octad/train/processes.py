"""What every worker of a group does: meet the others, then call one of our functions.

The controller reads this module to send these functions: torch is imported on the workers only.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from octad.spec.clusters import CardKind

# How one process talks to the others, by kind of card. Each has gloo for tensors in host memory.
COMMUNICATION: dict[CardKind, str] = {
    "sim": "gloo",
    "gpu": "cpu:gloo,cuda:nccl",
    "npu": "cpu:gloo,npu:hccl",
}
# The kind of card, in the environment of a job and of each of its processes.
CARD_KIND = "OCTAD_CARD_KIND"
_COLLECTIVE_LIMIT_S = 600
_SIOCGIFADDR = 0x8915  # Linux: the address of a network interface


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where one process meets the others.

    Attributes:
        rank, size: This process's place among all.
        local_rank: Its place on its node.
        node_rank: Its node's place among the nodes.
        address, port: Where rank 0 listens.
        card: The kind of card it has.
    """

    rank: int
    size: int
    local_rank: int
    node_rank: int
    address: str
    port: int
    card: CardKind


def call(config: dict[str, Any]) -> dict[str, Any]:
    """Import the function that `config` names, and call it with what it is to be given."""
    module, _, name = config["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    returned: dict[str, Any] = function(config["config"])
    return returned


def free_port() -> tuple[str, int]:
    """On rank 0: its node's address as Ray knows it, and a port that is free there."""
    import ray  # noqa: PLC0415  processes without Ray read this module too

    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), int(probe.getsockname()[1])


def interface_to(address: str) -> str:
    """The network interface by which this node reaches another, or "" if it cannot be known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = struct.pack("256s", name.encode())
                raw = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(raw[20:24]) == own:
                    return name
    return ""


def join_processes(meeting: Rendezvous) -> None:
    """Bring up torch and its process group."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    os.environ["LOCAL_RANK"] = str(meeting.local_rank)
    os.environ["NODE_RANK"] = str(meeting.node_rank)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(meeting.rank), str(meeting.size)
    os.environ[CARD_KIND] = meeting.card
    # Left alone, gloo listens where the host's name leads: on many machines, to themselves.
    interface = interface_to(meeting.address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if meeting.card == "sim":
        torch.set_num_threads(1)
    else:
        if meeting.card == "npu":
            importlib.import_module("torch_npu")
        torch.accelerator.set_device_index(meeting.local_rank % torch.accelerator.device_count())
    dist.init_process_group(
        COMMUNICATION[meeting.card],
        init_method=f"tcp://{meeting.address}:{meeting.port}",
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=timedelta(seconds=_COLLECTIVE_LIMIT_S),
    )
