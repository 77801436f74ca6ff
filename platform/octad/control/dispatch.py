"""Send one attempt to its cluster, so that it runs there exactly once.

The row that intends it is committed before; every step here can be repeated: the order is created
only if absent, the package is put by content, and a cluster is asked for the job before it is
sent. Ray itself refuses a second job of one id.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from octad.control.crashpoints import crashpoint
from octad.control.watch import Clusters, foreign_text, is_ours, job_mark
from octad.errors import (
    AccessError,
    ConflictError,
    NotFoundError,
    OctadError,
    StorageError,
    UnreachableError,
    UserError,
)
from octad.ports.clusters import JobRequest, Jobs, Provider
from octad.spec.keys import StageKeys, blob_key
from octad.spec.stages import AttemptOrder
from octad.storage import ObjectStore

# The kind whose entrypoint is the user's own, and holds the stage's cards itself.
USER_JOB = "job"
# Ray kills a stopped job after this long; a driver reports and ends within five seconds, after
# the grace that a user's own program is given.
_STOP_WAIT_S = 15


@dataclass(frozen=True, slots=True)
class Parcel:
    """All that is needed to send one attempt."""

    attempt_id: int
    submission_id: str
    package: str
    order: AttemptOrder


@dataclass(frozen=True, slots=True)
class Extras:
    """What a job of Ray's own clients has beside its order, which everybody may read.

    Attributes:
        env: Environment variables of the program.
        modules: sha256 of packages for Python's path, octad's own among them: the code package is
            the user's folder alone.
        pip: As Ray takes it, or None.
        holds_cards: Whether the entrypoint itself holds the cards.
    """

    env: Mapping[str, str]
    modules: tuple[str, ...]
    pip: dict[str, Any] | None
    holds_cards: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """How sending went: `sent` (the cluster has it), `refused` (it never will), `held` (try
    again), `dropped` (nobody wants it any more).
    """

    kind: Literal["sent", "refused", "held", "dropped"]
    text: str = ""


class Dispatcher:
    """Sends parcels.

    Args:
        store: Where orders and packages lie.
        clusters: The fleet.
        python: The interpreter that jobs are started with.
        control_id: Marks our jobs.
        is_wanted: Whether an attempt is still intended, asked just before it is sent.
        extras: What a run of Ray's own clients has beside its orders, by the run's id.
    """

    def __init__(
        self,
        store: ObjectStore,
        clusters: Clusters,
        *,
        python: str,
        control_id: str,
        is_wanted: Callable[[int], bool],
        extras: Callable[[str], Extras | None] = lambda _run: None,
    ) -> None:
        self._store = store
        self._clusters = clusters
        self._python = python
        self._control_id = control_id
        self._is_wanted = is_wanted
        self._extras = extras

    def send(self, parcel: Parcel) -> Receipt:
        """Send an attempt, or find that it was sent; safe to repeat at any time."""
        cluster = parcel.order.cluster
        try:
            return self._send(parcel)
        except (UnreachableError, AccessError) as error:
            return Receipt("held", f"unreachable: {error}")
        except StorageError as error:
            return Receipt("held", f"the store does not take the order: {error}")
        except UserError as error:
            return Receipt("refused", str(error))
        except OctadError as error:
            return Receipt("held", f"cluster {cluster}: {error}")

    def _send(self, parcel: Parcel) -> Receipt:
        order = parcel.order
        provider = self._clusters.provider(order.cluster)
        if provider is None:
            raise UnreachableError(f"cluster {order.cluster} is not in the fleet any more")
        self._write_order(order)
        crashpoint("dispatch.after_order")
        jobs = provider.jobs
        if self._is_known(jobs, parcel):
            return Receipt("sent", "adopted")
        extras = self._extras(order.run)
        request = self._request(provider, parcel, self._put_package(jobs, parcel.package))
        if extras is not None:
            modules = tuple(self._put_package(jobs, digest) for digest in extras.modules)
            request = _with_extras(request, extras, modules)
        if not self._is_wanted(parcel.attempt_id):
            return Receipt("dropped")
        try:
            jobs.submit(request)
        except ConflictError:
            # The reply of an earlier try was lost, and the cluster has it after all.
            if not self._is_known(jobs, parcel):
                raise UnreachableError(f"cluster {order.cluster} contradicts itself") from None
        crashpoint("dispatch.after_remote_accept")
        return Receipt("sent")

    def _is_known(self, jobs: Jobs, parcel: Parcel) -> bool:
        job = jobs.status(parcel.submission_id)
        if job is None:
            return False
        if not is_ours(job, self._mark(parcel.order)):
            raise ConflictError(foreign_text(parcel.order.cluster, parcel.submission_id))
        return True

    def _write_order(self, order: AttemptOrder) -> None:
        keys = StageKeys(order.run, order.stage.name)
        data = order.model_dump_json(indent=2).encode()
        key = keys.attempt(order.attempt).order
        if not self._store.create(key, data) and _parsed(self._store.get(key)) != order:
            raise ConflictError(
                "the store holds another order for this attempt, from another control plane",
                where=self._store.url(key),
                hint="submit the run under another id, or to another store",
            )
        self._store.put(keys.spec, order.stage.model_dump_json(indent=2).encode())

    def _put_package(self, jobs: Jobs, digest: str) -> str:
        """Give the cluster the code, once by content.

        Raises:
            NotFoundError: The store has lost it.
        """
        uri = f"gcs://_ray_pkg_{digest[:32]}.zip"
        if not jobs.has_package(uri):
            try:
                data = self._store.get(blob_key(digest))
            except NotFoundError:
                raise NotFoundError(
                    "the run's code package is gone from the store",
                    where=self._store.url(blob_key(digest)),
                    hint="resume the run from a checkout of its code",
                ) from None
            jobs.put_package(uri, data)
        return uri

    def _request(self, provider: Provider, parcel: Parcel, uri: str) -> JobRequest:
        order = parcel.order
        order_key = StageKeys(order.run, order.stage.name).attempt(order.attempt).order
        command = [
            self._python,
            f"jobs/{order.stage.kind}.py",
            "--order",
            self._store.url(order_key),
            "--store",
            self._store.spec.url,
            "--store-options",
            json.dumps(self._store.spec.options),
        ]
        return JobRequest(
            submission_id=parcel.submission_id,
            entrypoint=shlex.join(command),
            package_uri=uri,
            env={
                **provider.job_env,
                "PYTHONPATH": "platform",
                "OCTAD_RUN": order.run,
                "OCTAD_STAGE": order.stage.name,
                "OCTAD_ATTEMPT": str(order.attempt),
                "RAY_JOB_STOP_WAIT_TIME_S": str(_stop_wait_s(order)),
            },
            cards=order.stage.cards if order.stage.kind == USER_JOB else 0,
            metadata=self._mark(order),
        )

    def _mark(self, order: AttemptOrder) -> dict[str, str]:
        return job_mark(self._control_id, order.run, order.stage.name, order.attempt)


def _with_extras(request: JobRequest, extras: Extras, modules: tuple[str, ...]) -> JobRequest:
    """A job whose folder is the user's own: octad comes by Python's path."""
    python, _, *arguments = shlex.split(request.entrypoint)
    # What pip installs is seen by the interpreter that Ray makes for the job, first on its PATH.
    words = ["python" if extras.pip else python, "-m", "octad.stages", USER_JOB, *arguments]
    ours = {name: value for name, value in request.env.items() if name != "PYTHONPATH"}
    return replace(
        request,
        entrypoint=shlex.join(words),
        env={**extras.env, **ours},
        cards=request.cards if extras.holds_cards else 0,
        py_modules=modules,
        pip=extras.pip,
    )


def _parsed(raw: bytes) -> AttemptOrder | None:
    try:
        return AttemptOrder.model_validate_json(raw)
    except ValidationError:
        return None


def _stop_wait_s(order: AttemptOrder) -> int:
    grace_s = order.stage.settings.get("grace_s", 0)
    return _STOP_WAIT_S + math.ceil(grace_s if isinstance(grace_s, int | float) else 0)
