from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octad.clusters import _ports
from octad.errors import ConfigError, PortError


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_blocks_of_many_threads_are_apart() -> None:
    with ThreadPoolExecutor(12) as pool:
        blocks = list(pool.map(lambda _: _ports.claim(), range(12)))
    try:
        assert len({block.first for block in blocks}) == 12
        assert len({block.address for block in blocks}) == 12
        for block in blocks:
            services = [
                block.gcs,
                block.dashboard,
                block.agent,
                block.agent_grpc,
                block.client_server,
                block.node_manager,
                block.object_manager,
                block.runtime_env_agent,
                block.metrics,
            ]
            first, last = block.workers
            assert len(set(services)) == len(services)
            assert max(services) < first < last < block.first + _ports.SIZE
    finally:
        for block in blocks:
            block.release()


def test_a_block_belongs_to_the_process_that_inherited_it_until_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_ports, "_NUM_BLOCKS", 1)
    block = _ports.claim()
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(block.lock,)
    )
    block.release()
    with pytest.raises(PortError, match="no 128 ports in a row are free"):
        _ports.claim()
    heir.kill()
    heir.communicate()
    _ports.claim().release()


def test_a_block_with_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ports, "_NUM_BLOCKS", 2)
    monkeypatch.setattr("secrets.randbelow", lambda _: 0)
    first = _ports.claim()
    first.release()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.first + 100))
        taken.listen()
        second = _ports.claim()
    second.release()
    assert second.first == first.first + _ports.SIZE


def test_a_fixed_port_is_used_where_it_is_free(unused_port: int) -> None:
    block = _ports.claim(unused_port)
    block.release()
    assert block.dashboard == unused_port
    assert block.gcs == block.first


def test_a_fixed_port_in_use_is_named_with_who_holds_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            PortError, match=f"port {port} is in use by pid {os.getpid()} "
        ) as caught:
            _ports.claim(port)
    assert "choose another port" in caught.value.hint
    assert caught.value.exit_code == 12


def test_a_folder_of_locks_that_somebody_else_made_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"octad-ports-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="somebody else's"):
        _ports.claim()
