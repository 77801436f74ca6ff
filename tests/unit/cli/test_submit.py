"""`octad submit` and `octad demo`."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from octad.cli import follow
from octad.cli.sending import made_title
from octad.client.wire import Address, Wire
from octad.errors import CapacityError, StorageError
from octad.spec.names import checked_title

Octad = Any
StandIn = Any


def test_the_last_line_of_stdout_is_the_run(octad: Octad, stand_in: StandIn) -> None:
    done = octad("submit", "pipeline=quickstart", "pretrain.cards=8")
    assert done.code == 0
    assert done.out == "quickstart-1\n"
    assert "code: " in done.err


def test_json_is_one_document_and_the_package_is_sent_once(octad: Octad, stand_in: StandIn) -> None:
    first = octad("submit", "--json")
    assert first.document["id"] == "quickstart-1"
    assert octad("submit", "--json").code == 0
    assert len([r for r in stand_in.requests if r.startswith("PUT")]) == 1


def test_a_lost_answer_makes_no_second_run(octad: Octad, stand_in: StandIn) -> None:
    octad("submit")
    stand_in.losses = 1
    done = octad("submit")
    assert done.code == 0
    assert stand_in.requests.count("POST /api/runs") >= 2
    assert len(stand_in.submitted) == 2


def test_an_id_that_is_taken_is_refused_with_its_state(octad: Octad, stand_in: StandIn) -> None:
    assert octad("submit", "--run", "mine").out == "mine\n"
    done = octad("submit", "--run", "mine")
    assert (done.code, done.out) == (4, "")
    assert "octad: mine: mine exists already and is running" in done.err


@pytest.mark.parametrize("run", ["A", "a/b", "", "-a", "x" * 64])
def test_an_id_that_cannot_be_is_refused_before_anything_is_sent(
    octad: Octad, stand_in: StandIn, run: str
) -> None:
    assert octad("submit", f"--run={run}").code == 2
    assert stand_in.requests == []


def test_dry_run_sends_nothing(octad: Octad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAD_URL", "http://127.0.0.1:9")
    done = octad("submit", "--dry-run", "pretrain.cards=8", "pretrain.optimizer.lr=0.5")
    assert done.code == 0
    assert "pretrain" in done.out
    assert "optimizer.lr: 0.5" in done.out
    spec = octad("submit", "--dry-run", "--json").document
    assert [s["name"] for s in spec["stages"]] == ["preprocess", "pretrain", "finetune", "validate"]


def test_a_plan_shows_a_range_and_the_sizes_that_can_be_used(octad: Octad) -> None:
    done = octad("submit", "--dry-run", "pretrain.cards={min: 2, max: 8}")
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if line.startswith("pretrain"))
    assert row.split()[:3] == ["pretrain", "pretrain", "2-8"]
    assert "dp_shard fill, tp 2" in row
    assert "sizes it can use: 2, 4, 8" in done.out


def test_a_mistake_is_one_line_with_its_exit_code(octad: Octad, stand_in: StandIn) -> None:
    done = octad("submit", "pretrain.crads=1")
    assert done.code == 2
    assert done.err.startswith("octad: pretrain.crads: unknown key 'crads'; did you mean 'cards'?")
    assert done.err.count("\n") == 1
    assert stand_in.requests == []


def test_a_mistake_with_json_is_json_on_stderr(octad: Octad, stand_in: StandIn) -> None:
    done = octad("submit", "pretrain.cards=9", "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["error"]["where"] == "pretrain.cards"


def test_what_the_control_plane_refuses_has_its_exit_code(octad: Octad, stand_in: StandIn) -> None:
    stand_in.refusal = CapacityError("16 cards, the fleet has 8", where="pretrain.cards")
    assert octad("submit").code == 8


def test_sweep_sends_each_and_one_that_fails_does_not_keep_the_others(
    octad: Octad, stand_in: StandIn
) -> None:
    done = octad("submit", "-m", "pretrain.optimizer.lr=1e-3,boom,3e-4")
    assert done.code == 2
    assert done.out.split() == ["quickstart-1", "quickstart-2"]
    assert "1 of 3 did not go well: pretrain.optimizer.lr=boom" in done.err
    sweeps = {view["sweep"] for view in stand_in.submitted.values()}
    assert len(sweeps) == 1
    assert sweeps != {""}
    titles = [view["title"] for view in stand_in.submitted.values()]
    assert titles[0].endswith("pretrain.optimizer.lr=0.001")


def test_sweep_as_json_names_each(octad: Octad, stand_in: StandIn) -> None:
    done = octad("submit", "-m", "--json", "seed=1,boom")
    assert [r["run"] for r in done.document["runs"]] == ["quickstart-1", None]
    assert done.document["runs"][1]["error"]["where"] == "seed"


def test_a_followed_sweep_tells_of_each(octad: Octad, stand_in: StandIn, conftest: Any) -> None:
    bad = conftest.stage("pretrain", "failed", reason="it diverged")
    stand_in.views["quickstart-2"] = [conftest.run_view("quickstart-2", "failed", bad)]
    done = octad("submit", "-m", "--follow", "seed=1,2")
    assert done.code == 20
    assert "1 of 2 did not go well: quickstart-2" in done.err
    assert "it diverged" in done.err


def test_follow_ends_with_a_summary_and_the_run(
    octad: Octad, stand_in: StandIn, conftest: Any
) -> None:
    stage, run_view, attempt = conftest.stage, conftest.run_view, conftest.attempt
    metrics = {
        "base_tuning_loss": 3.0,
        "base_tuning_perplexity": 20.1,
        "tuned_tuning_loss": 2.5,
        "tuned_tuning_perplexity": 12.2,
        "tuning_gain": 0.393,
    }
    progress = {"phase": "working", "step": 3, "total": 9, "metrics": {"loss": 4.5}, "notes": ["n"]}
    running = run_view(
        "mine", "running", stage("pretrain", attempts=[attempt()], progress=progress)
    )
    stand_in.views["mine"] = [
        running,
        running,
        run_view(
            "mine",
            "succeeded",
            stage(
                "pretrain", "succeeded", attempts=[attempt(state="succeeded")], ended_at_ms=9_000
            ),
            stage("validate", "succeeded", metrics=metrics),
        ),
    ]
    done = octad("run", "mine", "-f")
    assert done.code == 0
    assert "pretrain     running  attempt 1 on alpha, 4 cards" in done.err
    assert "step 3/9  loss 4.5" in done.err
    assert "note: n" in done.err
    assert "pretrain  succeeded  alpha    4      dp_shard 2, tp 2" in done.out
    assert "Tuning lowers the perplexity of held-out tuning by 39.3%." in done.out
    assert "MLflow  http://127.0.0.1:5000/#/run" in done.out


def test_a_store_that_fails_says_why(octad: Octad, stand_in: StandIn) -> None:
    stand_in.is_store_down = True
    done = octad("submit")
    assert (done.code, done.out) == (StorageError.exit_code, "")
    assert done.err == "octad: s3://bucket: the store failed: no answer\n"


def test_demo_brings_up_sends_and_follows(octad: Octad, stand_in: StandIn) -> None:
    card = {"kind": "sim", "name": "sim"}
    cluster: dict[str, Any] = {
        "name": "alpha",
        "kind": "local",
        "card": card,
        "reason": "",
        "nodes": [],
    }
    cluster |= {"cards": 16, "cards_free": 16, "address": ""}
    stand_in.fleet = [
        {"clusters": [{**cluster, "state": state}], "tracker_url": ""}
        for state in ("starting", "up")
    ]
    done = octad("demo")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "quickstart-1"
    assert "alpha        up  16 cards" in done.err


def test_losing_the_control_plane_is_not_taken_for_success(
    octad: Octad, stand_in: StandIn, conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "FOLLOW_PATIENCE_S", 0.2)
    monkeypatch.setattr("octad.cli.run.connect", lambda: _impatient(stand_in))
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("pretrain"))]
    shows = stand_in.show

    def show(run: str) -> Any:
        stand_in.losses = 10**6 if len(stand_in.requests) > 2 else 0
        return shows(run)

    monkeypatch.setattr(stand_in, "show", show)
    done = octad("run", "mine", "-f")
    assert done.code == 10
    assert "the state of mine is unknown" in done.err
    assert "octad run mine -f" in done.err


def _impatient(stand_in: StandIn) -> Any:
    return Wire(Address(stand_in.url, "a-token"), patience_s=0.2)


def test_ctrl_c_detaches_only(
    octad: Octad, stand_in: StandIn, conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("pretrain"))]

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    done = octad("submit", "--run", "other", "-f")
    stand_in.views["other"] = stand_in.views["mine"]
    done = octad("run", "mine", "-f")
    assert done.code == 130
    assert "the run goes on: octad run mine -f" in done.err
    assert not [r for r in stand_in.requests if "cancel" in r]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_run_that_ends_badly_has_exit_code_20(
    octad: Octad, stand_in: StandIn, conftest: Any, state: str
) -> None:
    bad = conftest.stage("pretrain", state, reason="out\x1b[31m of luck")
    stand_in.views["mine"] = [conftest.run_view("mine", state, bad)]
    done = octad("run", "mine", "-f")
    assert done.code == 20
    assert f"octad: mine: pretrain {state}: out of luck; octad logs mine pretrain" in done.err


@pytest.mark.parametrize("user", ["J.Doe_1", "李", "", "a\tb", "x" * 300, "é" * 150])
def test_any_user_name_makes_a_title(user: str) -> None:
    assert checked_title(made_title("quickstart", user)).startswith("quickstart")


@pytest.mark.parametrize("title", ["李明", "🚀", "a=b, c", "it's [1", "2026", "مرحبا"])
def test_titles_arrive_unchanged(octad: Octad, stand_in: StandIn, title: str) -> None:
    assert octad("submit", "--title", title, "--json").document["title"] == title


def test_a_corpus_of_this_laptop_is_sent_once(
    octad: Octad, stand_in: StandIn, tmp_path: Path
) -> None:
    folder = tmp_path / "My Drive" / "日本 (1)" / "proj's"
    folder.mkdir(parents=True)
    (folder / "a b.txt").write_text("some text\n" * 50)
    (folder / "c.bin").write_text("not text")
    done = octad("submit", "--json", "data=folder", f"data.path={folder}")
    assert done.code == 0
    snapshot = done.document["config"]["data"]["snapshot"]
    files = json.loads(stand_in.blobs[snapshot])["files"]
    assert [f["path"] for f in files] == ["a b.txt"]
    assert files[0]["digest"].removeprefix("sha256:") in stand_in.blobs
    again = octad("submit", "--json", "data=folder", f"data.path={folder}")
    assert again.document["config"]["data"]["snapshot"] == snapshot
    assert stand_in.requests.count(f"PUT /api/blobs/{snapshot}") == 1


def test_an_empty_corpus_is_refused(octad: Octad, stand_in: StandIn, tmp_path: Path) -> None:
    done = octad("submit", "data=folder", f"data.path={tmp_path}")
    assert done.code == 6
    assert str(tmp_path) in done.err
    assert stand_in.submitted == {}


@pytest.mark.parametrize("folder", ["empty", "not-there"])
def test_a_dry_run_looks_at_the_folder_too(octad: Octad, tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    done = octad("submit", "--dry-run", "data=folder", f"data.path={tmp_path / folder}")
    assert done.code == 6
    assert str(tmp_path / folder) in done.err


def model_folder(folder: Path) -> list[str]:
    """A folder that looks like weights from here; the overrides for it."""
    folder.mkdir()
    config = {
        "model_type": "gpt2",
        "vocab_size": 300,
        "n_positions": 128,
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 4,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "notes.txt").write_text("not sent")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    raw = len(header).to_bytes(8, "little") + header + b"four"
    (folder / "model.safetensors").write_bytes(raw)
    return ["pipeline=finetune", f"pretrained.weights.path={folder}"]


def test_weights_are_sent_once_by_content(octad: Octad, stand_in: StandIn, tmp_path: Path) -> None:
    typed = model_folder(tmp_path / "weights")
    done = octad("submit", "--json", *typed)
    assert done.code == 0, done.err
    spec = next(iter(stand_in.submitted.values()))
    snapshot = spec["config"]["pretrained"]["weights"]["snapshot"]
    files = json.loads(stand_in.blobs[snapshot])["files"]
    assert [f["path"] for f in files] == ["config.json", "tokenizer.json", "model.safetensors"]
    octad("submit", "--json", *typed)
    assert stand_in.requests.count(f"PUT /api/blobs/{snapshot}") == 1


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_weights_that_may_run_code_are_refused_before_anything_is_sent(
    octad: Octad, stand_in: StandIn, tmp_path: Path, more: list[str]
) -> None:
    typed = model_folder(tmp_path / "weights")
    (tmp_path / "weights" / "model.safetensors").rename(tmp_path / "weights" / "model.bin")
    done = octad("submit", *more, *typed)
    assert done.code == 6
    assert "model.bin may run code when it is opened, and is not read; save it again" in done.err
    assert stand_in.submitted == {}


def test_a_model_that_does_not_fit_the_weights_is_refused_with_the_setting(
    octad: Octad, stand_in: StandIn, tmp_path: Path
) -> None:
    done = octad("submit", *model_folder(tmp_path / "weights"), "model.depth=3")
    assert done.code == 2
    assert done.err == (
        "octad: finetune.model.depth: pretrained.checkpoint has depth 2, not 3; "
        "set finetune.model.depth=2\n"
    )
    assert stand_in.requests == []
