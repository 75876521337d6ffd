"""Set-up of all tests: no telemetry, brief Hypothesis, PostgreSQL; skips what lacks its tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import modelless  # noqa: F401  (it turns ONNX Runtime's telemetry off; tests may import that later)

# ``--hypothesis-profile long`` takes the other one. Neither has a deadline: a test that passes or
# fails by the clock says how busy the machine is.
settings.register_profile("short", max_examples=30, deadline=None)
settings.register_profile("long", max_examples=300, deadline=None)
settings.load_profile("short")

TABLES = Path(__file__).parents[2] / "shared" / "data"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked ``shared_data`` if that folder is not beside the checkout."""
    if item.get_closest_marker("shared_data") and not TABLES.is_dir():
        pytest.skip(f"needs published tables and traces in {TABLES}, not part of the checkout")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server: that of MODELLESS_TEST_POSTGRESQL_URL, or one of its own."""
    given = os.environ.get("MODELLESS_TEST_POSTGRESQL_URL", "")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    pytest.importorskip("psycopg", reason="PostgreSQL is NOT TESTED: psycopg is not installed")
    if given:
        yield given
        return
    if not found:
        pytest.skip("PostgreSQL is NOT TESTED: apt-get install postgresql")
    # The server refuses to be the superuser's.
    how = {"user": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="modelless-", ignore_cleanup_errors=True) as name:
        if how:
            shutil.chown(name, "postgres")
        control = [str(found[-1] / "pg_ctl"), "--silent", f"--pgdata={name}/data"]
        quick = f"-k {name} -c listen_addresses= -c fsync=off -c max_connections=50"
        for more in (
            ["initdb", "-o", "--no-sync --auth=trust --username=postgres --encoding=UTF8"],
            ["start", "-o", quick, f"--log={name}/log"],
        ):
            subprocess.run([*control, *more], check=True, stdout=subprocess.DEVNULL, **how)
        yield f"postgresql+psycopg://postgres@/postgres?host={name}"
        subprocess.run([*control, "stop", "--mode=immediate"], check=True, **how)
