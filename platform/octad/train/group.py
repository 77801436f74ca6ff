"""One process per card: a Ray Train worker group that runs one of our functions.

Ray's own TorchTrainer imports torch in the driver and in the controller, where nothing needs it,
and starts one more actor that tidies up placement groups, which Ray does anyway when a job ends.
Only the workers import torch here, so the first step comes sooner.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.placement_group_callback import (
    PlacementGroupCleanerCallback,
)
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from octad.errors import OctadError, StageError
from octad.spec.clusters import CARD_RESOURCE, CardKind
from octad.train.joining import join_ray
from octad.train.processes import (
    CARD_KIND,
    COMMUNICATION,
    Rendezvous,
    call,
    free_port,
    join_processes,
)

_RAY_KEY: dict[CardKind, str] = {"gpu": "GPU", "npu": "NPU"}
_CPUS_PER_WORKER = 0.1  # a card is what is scarce; a share of a CPU must never hold a worker back
_ENVIRONMENT = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
# What the other ranks see when one of them dies.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Connection refused")


def run_group(
    function: str,
    config: dict[str, Any],
    *,
    cards: int,
    name: str,
    card_kind: CardKind | None = None,
) -> dict[str, Any]:
    """Run `function(config)` on every card and wait. Returns what rank 0 returned.

    Ray is joined, by `RAY_ADDRESS` if that is set, where it is not yet.

    Args:
        function: `module:function`, imported on the workers only.
        config: Plain data.
        cards: Number of processes.
        name: For Ray's dashboard and logs.
        card_kind: Decides the communication, and which Ray resources a worker takes. None reads
            it from the job's environment, where the cluster's provider has put it.

    Raises:
        OctadError: What a worker raised on purpose, as it was raised.
        StageError: A worker died, or failed in some other way; names the rank.
        UnreachableError: No Ray cluster answers.
    """
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    join_ray()
    with tempfile.TemporaryDirectory(prefix="octad-train-") as folder:
        trainer = Trainer(
            call,
            train_loop_config={"function": function, "config": config},
            backend_config=ProcessesConfig(card_kind or _card_kind()),
            scaling_config=_scaling(cards, card_kind or _card_kind()),
            run_config=RunConfig(
                name=name, storage_path=folder, failure_config=FailureConfig(max_failures=0)
            ),
        )
        try:
            returned: dict[str, Any] = trainer.fit().return_value
        except WorkerGroupError as error:
            raise reason(error.worker_failures) from error
        except TrainingFailedError as error:
            raise StageError(f"the worker group could not be run: {error}") from error
    return returned


class Trainer(DataParallelTrainer):
    """Without the actor that tidies up placement groups: it costs a process at every start."""

    def _create_default_callbacks(self) -> list[Any]:
        return [
            callback
            for callback in super()._create_default_callbacks()
            if not isinstance(callback, PlacementGroupCleanerCallback)
        ]


class ProcessesConfig(BackendConfig):
    """Says which kind of card the processes have."""

    def __init__(self, card: CardKind) -> None:
        self.card = card

    @property
    def backend_cls(self) -> type[Backend]:
        """What brings the processes together."""
        return Processes


class Processes(Backend):
    """Brings up torch's process group on the workers; runs in the controller, without torch."""

    def on_start(self, worker_group: Any, backend_config: ProcessesConfig) -> None:
        """Every worker meets the others where rank 0 listens."""
        address, port = worker_group.execute_single(0, free_port)
        workers = worker_group.get_workers()
        joining = []
        for rank, worker in enumerate(workers):
            meeting = Rendezvous(
                rank=rank,
                size=len(workers),
                local_rank=worker.distributed_context.local_rank,
                node_rank=worker.distributed_context.node_rank,
                address=address,
                port=port,
                card=backend_config.card,
            )
            joining.append(worker_group.execute_single_async(rank, join_processes, meeting))
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: ProcessesConfig) -> None:
        """Nothing: the processes end with the group."""


def _scaling(cards: int, card_kind: CardKind) -> ScalingConfig:
    resources = {_card_resource(): 1, "CPU": _CPUS_PER_WORKER}
    if card_kind in _RAY_KEY:
        resources[_RAY_KEY[card_kind]] = 1
    return ScalingConfig(
        num_workers=cards, use_gpu=card_kind == "gpu", resources_per_worker=resources
    )


def _card_resource() -> str:
    """The Ray resource that counts this cluster's cards."""
    return os.environ.get("OCTAD_CARD_RESOURCE", CARD_RESOURCE)


def _card_kind() -> CardKind:
    named = os.environ.get(CARD_KIND)
    by_resource = {resource: kind for kind, resource in _RAY_KEY.items()}
    for kind in COMMUNICATION:
        if kind == named:
            return kind
    return by_resource.get(_card_resource(), "sim")


def reason(worker_failures: dict[int, Exception]) -> OctadError:
    """Of all that workers saw, by rank, the one error that explains the others."""
    failures = sorted(worker_failures.items())
    for _, failure in failures:
        found = _ours(failure)
        if found is not None:
            # A worker that says so itself has an outcome that would come again.
            found.is_final = found.is_final or isinstance(found, StageError)
            return found
    dead = [rank for rank, failure in failures if "HealthCheck" in type(failure).__name__]
    if dead:
        return StageError(f"the worker of rank {dead[0]} died", hint="see its node's log")
    for rank, failure in failures:
        if any(sign in str(failure) for sign in _LOST_PEER):
            return StageError(f"rank {rank} lost its connection to another worker")
    rank, failure = failures[0]
    return StageError(f"the worker of rank {rank} failed: {type(failure).__name__}: {failure}")


def _ours(failure: BaseException | None) -> OctadError | None:
    while failure is not None:
        if isinstance(failure, OctadError):
            return failure
        failure = getattr(failure, "cause", None) or failure.__cause__
    return None
