"""Whether this machine and a home are fit to serve: what would go wrong, and how to mend each."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from modelless.common.errors import ModellessError
from modelless.controller.assembly import check_policies
from modelless.controller.config import Settings, load_settings
from modelless.controller.live.cluster.loopback import LOOPBACK, check_authentication
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.cluster.running import read_state
from modelless.controller.live.key_file import read_keys
from modelless.controller.live.knowledge import read_knowledge
from modelless.controller.usecases.cluster import check_exposed, lacking_files
from modelless.controller.usecases.home import AnyPath, Home, home_folder, open_home, path_or_none
from modelless.controller.usecases.measuring.profiling import list_engines
from modelless.policies.scopes import task_of
from modelless.profiler.cost_model.serving_model import best_points
from modelless.profiler.devices.host import read_facts
from modelless.variants.registry.catalog import Catalog

_FULL: Final = 0.95
"""Share of the disk, or of the memory, from which Ray refuses to spill, or ends workers."""

_CLOCK_STEP_S: Final = 60.0
_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        found: what there is, or what would go wrong.
        mend: what to do about it; empty if all is well.
    """

    name: str
    found: str
    mend: str = ""

    @property
    def is_well(self) -> bool:
        return not self.mend


def examine(*, config: AnyPath | None = None, home: Home = None) -> list[Check]:
    """Check the machine, the installed packages, the settings and the home; nothing is started.

    Args:
        config: settings file that ``up`` would get.
        home: see ``home_folder``. It is not made if it is not there.

    Examples:
        >>> [check.name for check in examine() if not check.is_well]  # doctest: +SKIP
        ['disk']
    """
    folder = home_folder(home)
    checks: list[Check] = []

    @contextmanager
    def guarded(name: str) -> Iterator[None]:
        """An error is a result, too: its message says how to mend it."""
        try:
            yield
        except (ModellessError, OSError) as error:
            checks.append(Check(name, "error", str(error)))

    with guarded("machine"):
        checks += _check_machine(folder)
    with guarded("versions"):
        checks.append(_check_versions())
    with guarded("home"):
        checks += _check_home(folder)
    settings = Settings()
    with guarded("settings"):
        settings = load_settings(path_or_none(config))
        check_policies(settings)
        check_exposed(settings, read_keys(folder))
        check_authentication(None)
        checks.append(Check("settings", str(config) if config is not None else "the defaults"))
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    checks.append(Check("open files", f"at most {most_files}", lacking_files(settings)))
    with guarded("ports"):
        checks.append(_check_ports(folder, settings))
    catalog = None
    with guarded("store"):
        check, catalog = _check_store(folder)
        checks.append(check)
    with guarded("engines"):
        checks.append(_check_engines(catalog))
    if catalog is not None:
        with guarded("variants"):
            checks += _check_served(folder, settings)
    return checks


def document_of(checks: list[Check]) -> dict[str, Any]:
    """The checks as plain data."""
    return {
        "is_well": all(check.is_well for check in checks),
        "checks": [{**asdict(check), "is_well": check.is_well} for check in checks],
    }


def _check_machine(home: Path) -> Iterator[Check]:
    facts = read_facts()
    yield Check("cores", f"{facts.cores}, {facts.cpu_model}")
    lines = _MEMINFO.read_text().splitlines() if _MEMINFO.exists() else []
    kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    free, total = kibibytes.get("MemAvailable", 0), kibibytes.get("MemTotal", 0)
    yield Check(
        "memory",
        f"{_gib(facts.memory_bytes)} may be used, {_gib(free * 1024)} of the machine's "
        f"{_gib(total * 1024)} are free",
        "Ray ends workers while over 95 % of the memory are in use: end other programs"
        if total and free < (1.0 - _FULL) * total
        else "",
    )
    place = next(each for each in (home, *home.absolute().parents) if each.exists())
    disk = shutil.disk_usage(place)
    yield Check(
        "disk",
        f"{_gib(disk.free)} of {_gib(disk.total)} are free at {place}",
        "Ray writes no more to a disk that is 95 % full: make room, or use another --home"
        if disk.free < (1.0 - _FULL) * disk.total
        else "",
    )


def _check_versions() -> Check:
    from packaging.requirements import Requirement

    unfit = []
    for line in requires("modelless") or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            there = version(needed.name)
        except PackageNotFoundError:
            unfit.append(f"{needed} is missing")
            continue
        if not needed.specifier.contains(there, prereleases=True):
            unfit.append(f"{needed.name} is {there}")
    return Check(
        "versions",
        "; ".join(unfit)
        or f"modelless {version('modelless')}, Python {platform.python_version()}, "
        f"Ray {version('ray')}",
        "install modelless's requirements again: pip install --upgrade modelless" if unfit else "",
    )


def _check_home(home: Path) -> Iterator[Check]:
    if not home.exists():
        yield Check("home", f"{home} is not there yet; the first command makes it")
        return
    found = home.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or not os.access(home, os.W_OK | os.X_OK):
        mend = "give it to the user who serves, with chown, or use another --home"
    elif mode & 0o077:
        mend = f"others may enter it, and it has keys: chmod 700 {home}"
    else:
        mend = ""
    yield Check("home", f"{home}, mode {mode:03o}, of user {found.st_uid}", mend)
    ahead_s = max(each.stat().st_mtime for each in (home, *home.glob("*"))) - time.time()
    yield Check(
        "clock",
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        f"the home has files from {ahead_s:.0f} s in the future, so keys expire late and the "
        "history is out of order: set the clock, e.g. with chrony"
        if ahead_s > _CLOCK_STEP_S
        else "",
    )


def _check_ports(home: Path, settings: Settings) -> Check:
    running = read_state(home)
    if running is not None:
        return Check("ports", f"modelless is up at {running.url}")
    wanted = settings.http.chosen_ports
    with closing(HeldPorts()) as ports:
        for host, port in wanted:
            ports.hold(host, port)
        ports.hold(LOOPBACK)
    return Check("ports", ", ".join(f"{host}:{port}" for host, port in wanted) + " can be used")


def _check_store(home: Path) -> tuple[Check, Catalog | None]:
    if not home.exists() and not os.environ.get("MODELLESS_STORE_URL"):
        return Check("store", "not there yet; the first command makes it"), None
    with open_home(home) as registry:
        store = registry.store
        damage = ""
        if store.engine.dialect.name == "sqlite":
            with store.session() as session:
                rows = session.execute(text("PRAGMA quick_check(1)")).scalars().all()
            damage = "" if rows == ["ok"] else "; ".join(map(str, rows))
        catalog = registry.catalog()
    mend = "bring it back from a backup; its file is damaged" if damage else ""
    return Check("store", damage or f"{store.shown_url}, schema up to date", mend), catalog


def _check_engines(catalog: Catalog | None) -> Check:
    rows = {row["engine"]: row for row in list_engines()}
    works = [name for name, row in rows.items() if row["available"]]
    needed = {each.engine.value for each in catalog.variants} if catalog is not None else set()
    lacking = sorted(needed - set(works))
    mend = "; ".join(f"variants need {name}: {rows[name]['install']}" for name in lacking)
    if not works:
        mend = f"no engine works; install one, such as: {rows['onnxruntime-cpu']['install']}"
    return Check("engines", ", ".join(works) or "none", mend)


def _check_served(home: Path, settings: Settings) -> Iterator[Check]:
    knowledge = read_knowledge(home, settings)
    not_served = knowledge.servable().not_served
    tasks = ", ".join(sorted(knowledge.catalog.tasks.keys() - not_served.keys())) or "no task"
    yield Check("variants", f"{tasks} can be served", "; ".join(not_served.values()))
    points = best_points(knowledge.cost_inputs.measurements)
    rows = [row for each in points.values() for row in each]
    doubtful = [row for row in rows if not row.trusted]
    tasks = " ".join(sorted({task_of(row.variant_id) for row in doubtful}))
    classes = ",".join(sorted({row.device_class for row in doubtful}))
    yield Check(
        "profiles",
        f"{len(rows) - len(doubtful)} of {len(rows)} measured points are trusted",
        "latencies from a busy machine can be several times too high, and the variants that have "
        f"them are not chosen; once it is quiet, run modelless profile {tasks} --device-class "
        f"{classes}"
        if doubtful
        else "",
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
