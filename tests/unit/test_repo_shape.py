"""The shape of the repository: what would break imports or the house rules, caught early."""

import ast
import platform
import re
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "platform" / "octad"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "migrations" not in p.parts)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_MODULE_LINES, MAX_TEST_LINES, MAX_INIT_LINES, MAX_JOB_LINES = 500, 800, 30, 60
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base", "core"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", ["platform", "conf", "jobs", "docker", "tests"])
def test_top_folders_are_not_packages(folder: str) -> None:
    assert not list((ROOT / folder).glob("__init__.py"))


def test_root_and_source_root_hold_no_loose_modules() -> None:
    assert not list(ROOT.glob("*.py"))
    held = {p.name for p in (ROOT / "platform").iterdir()} - {"__pycache__"}
    assert held == {"octad"}


def test_platform_is_the_standard_library() -> None:
    assert platform.__file__ is not None
    assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_modules_stay_short(module: Path) -> None:
    lines = len(module.read_text().splitlines())
    assert lines <= (MAX_INIT_LINES if module.name == "__init__.py" else MAX_MODULE_LINES)


@pytest.mark.parametrize("module", TESTS, ids=relative)
def test_test_files_stay_short(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= MAX_TEST_LINES


@pytest.mark.parametrize("job", sorted((ROOT / "jobs").glob("*.py")), ids=relative)
def test_jobs_are_thin_and_say_how_to_run_them(job: Path) -> None:
    text = job.read_text()
    assert len(text.splitlines()) <= MAX_JOB_LINES
    assert f"python jobs/{job.name}" in (ast.get_docstring(ast.parse(text)) or "")


def test_every_stage_kind_has_its_job_and_its_conf() -> None:
    kinds = {p.stem for p in (PACKAGE / "stages").glob("[!_]*.py")}
    assert {p.stem for p in (ROOT / "jobs").glob("*.py")} == kinds
    named = {
        match[1]
        for path in (ROOT / "conf" / "stage").glob("*.yaml")
        if (match := re.search(r"^kind: (\S+)$", path.read_text(), re.MULTILINE))
    }
    assert named == kinds


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_names_say_what_a_module_is(module: Path) -> None:
    assert module.stem.strip("_") not in BANNED_NAMES


def test_no_config_names_a_python_target() -> None:
    hits = [p for p in (ROOT / "conf").rglob("*.yaml") if "_target_" in p.read_text()]
    assert not hits


FORBIDDEN = {
    "pickle.load": re.compile(r"\bpickle\.loads?\("),
    "torch.load without weights_only": re.compile(r"torch\.load\((?!.*weights_only=True)"),
    "yaml.load": re.compile(r"\byaml\.(unsafe_)?load\("),
    "a shell": re.compile(r"shell=True"),
    "TLS checks off": re.compile(r"verify=False"),
    "ray stop": re.compile(r"""["']ray["'],\s*["']stop["']|ray stop["' ]"""),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_package_never_uses(what: str) -> None:
    hits = [relative(p) for p in MODULES if FORBIDDEN[what].search(p.read_text())]
    assert not hits


@pytest.mark.parametrize("module", TESTS, ids=relative)
def test_tests_with_clusters_lie_where_make_looks_for_them(module: Path) -> None:
    if re.search(r"pytest\.mark\.ray\b", module.read_text()) and module != Path(__file__):
        assert (ROOT / "tests" / "integration") in module.parents
