"""Build the sdist and the wheel, compare both with the tree, and use the wheel as a user would.

Run by .ci/run with the environment that `make test` made. Nothing is written into the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("controller", "policies", "profiler", "variants")
SOURCES = ("src", *FOLDERS, "requirements", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
OF_MACHINES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")

USE = """
import importlib, pathlib, sys
import modelless, modelless.policies.discovery as discovery
for folder in ("controller", "policies", "profiler", "variants"):
    importlib.import_module("modelless." + folder)
    try:
        importlib.import_module(folder)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{folder} is importable by its bare name")
for seam, known in discovery.BUILT_IN.items():
    for name in known:
        discovery.find_policy(seam, name)
home = pathlib.Path(modelless.__file__).resolve()
if not home.is_relative_to(pathlib.Path(sys.prefix).resolve()):
    sys.exit(f"modelless was imported from {home}, not from the wheel")
"""


def main() -> None:
    """Check everything; the first thing that is wrong ends it with a message."""
    with tempfile.TemporaryDirectory(prefix="modelless-package-") as name:
        work = Path(name)
        tree = copy_tree(work / "tree")
        expected = files_of_tree(tree)
        wheel = build("wheel", tree, work / "from-tree")
        same("the wheel", expected, contents(wheel))
        sdist = build("sdist", tree, work / "sdist")
        unpacked = unpack(sdist, work / "unpacked")
        again = build("wheel", unpacked, work / "from-sdist")
        same("the wheel built from the sdist", expected, contents(again))
        use(again, work / "user")


def copy_tree(target: Path) -> Path:
    """All that a build needs, its links kept, without what builds leave behind."""
    target.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=OF_MACHINES)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def files_of_tree(tree: Path) -> dict[str, bytes]:
    """Content by the path each file of the package should have in a wheel."""
    files = [path for folder in FOLDERS for path in (tree / folder).rglob("*") if path.is_file()]
    found = {f"modelless/{path.relative_to(tree)}": path.read_bytes() for path in files}
    package = tree / "src" / "modelless"
    own = [package / "__init__.py", package / "py.typed", *(package / "common").rglob("*.py")]
    found |= {f"modelless/{path.relative_to(package)}": path.read_bytes() for path in own}
    return found


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build a wheel or an sdist of ``tree`` with the locked setuptools; returns it."""
    run([sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, tree])
    (built,) = out.iterdir()
    print(f"  {built.name}: {built.stat().st_size / 1e6:.2f} MB")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """Content by path of the package's files in a wheel; checks what lies beside them."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    beside = {name.partition("/")[0] for name in files} - {"modelless"}
    information = {name.partition("/")[2] for name in files if ".dist-info/" in name}
    if len(beside) != 1 or not next(iter(beside)).endswith(".dist-info"):
        sys.exit(f"{wheel.name} holds more than the package: {sorted(beside)}")
    if missing := {"licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"} - information:
        sys.exit(f"{wheel.name} lacks {sorted(missing)}")
    return {name: data for name, data in files.items() if name.startswith("modelless/")}


def same(what: str, expected: dict[str, bytes], found: dict[str, bytes]) -> None:
    """End the check if two sets of files differ in a name or a byte."""
    missing, surplus = sorted(expected.keys() - found), sorted(found.keys() - expected)
    changed = sorted(name for name in expected.keys() & found if expected[name] != found[name])
    if missing or surplus or changed:
        sys.exit(f"{what} is not the tree: {missing=} {surplus=} {changed=}")
    print(f"  {what}: {len(found)} files, as in the tree")


def unpack(sdist: Path, target: Path) -> Path:
    """Unpack an sdist; returns its one folder."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extractall(target, filter="data")
        else:
            archive.extractall(target)  # noqa: S202  (built here a moment ago)
    (folder,) = target.iterdir()
    return folder


def use(wheel: Path, home: Path) -> None:
    """Install the wheel where no source is near, and run what a user runs first."""
    venv.create(home / "venv", with_pip=True)
    python, elsewhere = home / "venv" / "bin" / "python", home / "elsewhere"
    elsewhere.mkdir()
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", ROOT / "requirements/demo.txt"]
    run([*pip, "install", "--quiet", *locked])
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel])
    run([*pip, "check"], cwd=elsewhere)
    run([home / "venv" / "bin" / "modelless", "--version"], cwd=elsewhere)
    run([home / "venv" / "bin" / "modelless", "--help"], cwd=elsewhere)
    run([python, "-c", USE], cwd=elsewhere)
    print("  the wheel works without the sources")


def run(command: list[object], cwd: Path | None = None) -> None:
    """Run a command, silent unless it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
