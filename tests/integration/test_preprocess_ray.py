"""Preprocessing as real Ray tasks: the same result as without, and errors as they were raised."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from octad.errors import DataError
from octad.spec.corpora import scan
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.stages import preprocess
from octad.stages._attempt import Attempt
from octad.stages._corpora import prepare
from octad.stages._spread import OverRay, in_turn
from octad.storage import ObjectStore

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]
PLATFORM = Path(__file__).resolve().parents[2] / "platform"


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(
            address="local",
            num_cpus=4,
            resources={"card": 8},
            include_dashboard=False,
            object_store_memory=80 * 1024 * 1024,
            runtime_env={"env_vars": {"PYTHONPATH": str(PLATFORM)}},
            _temp_dir=str(tmp_path_factory.mktemp("ray")),
        )
        yield
        ray.shutdown()


def attempt(root: Path, cards: int, settings: preprocess.Settings) -> Attempt:
    store = StoreSpec(url=f"file://{root}/store")
    stage = StageSpec(
        name="preprocess",
        kind="preprocess",
        cards=cards,
        layout=Layout(dp_shard=cards),
        settings=settings.plain(),
    )
    order = AttemptOrder(run="run", attempt=1, stage=stage, inputs={}, store=store)
    return Attempt(order, None, ObjectStore(store), root / "scratch")


@pytest.mark.usefixtures("_cluster")
def test_tasks_on_cards_make_what_one_process_makes(tmp_path: Path) -> None:
    settings = preprocess.Settings.parse(
        {
            "source": {"kind": "stdlib", "limit_bytes": 1_500_000},
            "tuning_source": {"kind": "pydoc_topics", "limit_bytes": 100_000},
            "vocab": 512,
        }
    )
    alone = attempt(tmp_path / "alone", 1, settings)
    wanted, metrics = prepare(alone, settings, in_turn)
    for cards in (1, 2):
        context = attempt(tmp_path / str(cards), cards, settings)
        found, told = preprocess.build(settings).run(context)
        assert [(a.name, a.digest) for a in found] == [(a.name, a.digest) for a in wanted]
        assert told == metrics
        for artefact in found:
            assert context.fetch(artefact).is_dir()


@pytest.mark.usefixtures("_cluster")
def test_an_error_in_a_task_comes_out_as_it_was_raised(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    spread = OverRay(2)
    found = spread(scan, [tmp_path / "in"] * 5, lambda done, total: told.append((done, total)))
    assert [list(scanned.files) for scanned in found] == [["a.txt"]] * 5
    assert told == [(done, 5) for done in range(1, 6)]
    with pytest.raises(DataError, match="is not there") as caught:
        spread(scan, [tmp_path / "in", tmp_path / "gone"], lambda *_: None)
    assert caught.value.where == "data.path"
    assert caught.value.hint == "name a folder that holds text"
