"""The driver of a stage's job: reads its order, fences older attempts, runs the stage, and says
how it ended.

    python jobs/<kind>.py --order URL --store URL [--store-options JSON]   from a control plane
    python jobs/<kind>.py OVERRIDES...                                     by hand
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from octad.errors import ConfigError, FencedError, NotFoundError, OctadError, StageError
from octad.ports.registry import load
from octad.spec.artefacts import Artefact
from octad.spec.stages import AttemptFailure, AttemptOrder, AttemptResult, StoreSpec
from octad.stages._attempt import Attempt, Terminated
from octad.stages._hand import order_by_hand
from octad.stages._shipping import Shipping, shipping_of
from octad.storage import lineage
from octad.storage.objects import ObjectStore

_LOG = logging.getLogger(__name__)
_BUG = 1
_TERMINATED = 128 + signal.SIGTERM
_CTRL_C = 128 + signal.SIGINT
_ASKED = "was asked to stop (SIGTERM)"


def run_job(kind: str, arguments: Sequence[str] | None) -> int:
    """Run one attempt of a stage of this kind; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any(word == "--order" or word.startswith("--order=") for word in given):
            order, shipping = _dispatched(given), None
        else:
            order, spec = order_by_hand(kind, given)
            shipping = shipping_of(order, spec)
        if order.stage.kind != kind:
            raise ConfigError(f"the order is for a {order.stage.kind} stage, not for a {kind}")
        return run_attempt(order, shipping)
    except OctadError as error:
        return _said(error)


def run_attempt(order: AttemptOrder, shipping: Shipping | None = None) -> int:
    """Do what an order asks. Returns the exit code; everything else is in the store.

    Raises:
        FencedError: The attempt, or a newer one, has begun elsewhere: nothing was changed.
    """
    store = ObjectStore(order.store)
    passed_over: list[str] = []

    def pass_over(commit: lineage.Commit, error: OctadError) -> None:
        text = f"the checkpoint at step {commit.position.step} is damaged and was passed over"
        passed_over.append(f"{text}: {error}")

    base = lineage.claim(store, order, pass_over)
    with tempfile.TemporaryDirectory(prefix="octad-") as scratch:
        attempt = Attempt(order, base, store, Path(scratch))
        _stop_on_sigterm(attempt)
        notes = tuple(dict.fromkeys(passed_over))
        if shipping is None:
            return _ended(attempt, notes)
        with shipping.running():
            code = _ended(attempt, notes)
        shipping.end(code)
        return code


def _dispatched(arguments: list[str]) -> AttemptOrder:
    parser = argparse.ArgumentParser(description="One stage attempt, as a control plane orders it.")
    parser.add_argument("--order", required=True, help="URL of its order")
    parser.add_argument("--store", required=True, help="URL of the store that the order lies in")
    parser.add_argument("--store-options", default="{}", help="what the store needs besides")
    given = parser.parse_args(arguments)
    spec = StoreSpec.parse({"url": given.store, "options": json.loads(given.store_options)})
    store = ObjectStore(spec)
    raw = store.find(store.key(given.order))
    if raw is None:
        raise NotFoundError("there is no order", where=given.order)
    return AttemptOrder.parse(json.loads(raw), where=given.order)


def _ended(attempt: Attempt, notes: tuple[str, ...]) -> int:
    """Run the stage, and write how it ended."""
    try:
        _begin(attempt, notes)
        _run(attempt)
    except KeyboardInterrupt:
        _fail(attempt, StageError("was stopped by ctrl-C").to_wire(), is_final=False)
        return _CTRL_C
    except Terminated:
        attempt.is_stop_told.wait(attempt.grace_s)
        attempt.note(_ASKED)  # the stage may have written its own progress over it
        return _TERMINATED
    except FencedError as error:
        return _said(error)
    except OctadError as error:
        _fail(attempt, error.to_wire(), is_final=error.is_final)
        return _said(error)
    except Exception as error:  # noqa: BLE001  whatever a stage raises is told, and is a bug
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        wire = {"kind": "Exception", "what": what, "where": attempt.order.stage.name, "hint": ""}
        _fail(attempt, wire, is_final=False)
        return _BUG
    return 0


def _begin(attempt: Attempt, notes: tuple[str, ...]) -> None:
    attempt.phase("starting")
    for text in notes:
        attempt.note(text)
    if attempt.base is not None:
        _LOG.info("goes on from step %s of attempt %s", attempt.base.step, attempt.base.attempt)
    _sweep(attempt.store, attempt.order)


def _run(attempt: Attempt) -> None:
    order = attempt.order
    module = load("octad.stages", order.stage.kind)
    settings = module.Settings.parse(order.stage.settings, where=order.stage.name)
    artefacts, metrics = module.build(settings).run(attempt)
    _succeed(attempt, tuple(artefacts), metrics)


def _succeed(
    attempt: Attempt, artefacts: tuple[Artefact, ...], metrics: Mapping[str, float]
) -> None:
    """Write the result, once.

    Raises:
        FencedError: A newer attempt has begun, or this one has another result already.
    """
    number = attempt.order.attempt
    newest = lineage.newest_epoch(attempt.store, attempt.stage_keys)
    if newest > number:
        raise FencedError(f"attempt {newest} has begun", where=attempt.stage_keys.root)
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    for name in sorted(set(metrics) - set(finite)):
        attempt.note(f"the final {name} is {metrics[name]}")
    attempt.phase("done")
    result = AttemptResult(attempt=number, artefacts=artefacts, metrics=finite, notes=attempt.notes)
    raw = result.model_dump_json().encode()
    is_made = attempt.store.create(attempt.keys.result, raw)
    if not is_made and attempt.store.find(attempt.keys.result) != raw:
        raise FencedError("there is a result already", where=attempt.keys.result)


def _fail(attempt: Attempt, error: dict[str, str], *, is_final: bool) -> None:
    failure = AttemptFailure(attempt=attempt.order.attempt, is_final=is_final, error=error)
    try:
        attempt.store.put(attempt.keys.error, failure.model_dump_json().encode())
    except OctadError as unwritten:
        _LOG.warning("the reason could not be written: %s", unwritten)


def _sweep(store: ObjectStore, order: AttemptOrder) -> None:
    try:
        removed = lineage.sweep(store, order)
    except OctadError as error:
        _LOG.warning("what older attempts never finished stays for now: %s", error)
        return
    if removed:
        _LOG.info("removed %s files that older attempts never finished", removed)


def _said(error: OctadError) -> int:
    with suppress(OSError):  # the log's disk may be full
        sys.stderr.write(f"octad: {error}\n")
    return error.exit_code


def _stop_on_sigterm(attempt: Attempt) -> None:
    """On SIGTERM, say so and leave the stage; the process ends in time even if something hangs."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # What the main thread is doing may not let it go at once, or at all.
        threading.Thread(target=_stop, args=(attempt,), name="stop", daemon=True).start()
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _stop(attempt: Attempt) -> None:
    until_s = time.monotonic() + attempt.grace_s
    attempt.note(_ASKED)
    _fail(attempt, StageError(_ASKED).to_wire(), is_final=False)
    attempt.is_stop_told.set()
    time.sleep(max(0.0, until_s - time.monotonic()))
    os._exit(_TERMINATED)
