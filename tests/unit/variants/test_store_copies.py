"""Stores copied between databases, backed up and restored; and the lease of a control plane."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, text, update

from modelless.common.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.registry.registry import Registry
from modelless.variants.store import (
    DeviceClassRow,
    HistoryRow,
    PairRunRow,
    ProfileTableRow,
    Store,
    copying,
    open_store,
    utc_now,
)
from modelless.variants.store.copying import TABLES, copy_store, restore_backup, write_backup
from modelless.variants.store.leases import LEASE_S, end_lease, take_lease
from modelless.variants.store.rows import MADE
from modelless.variants.store.tables import LeaseRow
from modelless.variants.vocabulary import Engine, Precision
from tests.builders import ACCURACY, MODEL, TASK, tiny_bytes


def ignore(*_: int) -> None:
    """No progress."""


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    """Rows in most tables, with each kind of column, and two artifacts."""
    registry = Registry(store, ArtifactStore(tmp_path / "artifacts"))
    for scale in (1.0, 2.0):
        registry.register_variant(
            task=TASK, model=MODEL, name="fp32", precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU, accuracy=ACCURACY, artifact=tiny_bytes(scale),
        )  # fmt: skip
    registry.revise_accuracy("pixels/mean/fp32@2", ACCURACY, "measured again", {"ünï": [1, 0.1]})
    with store.transaction() as session:
        session.add(
            PairRunRow(
                variant_id="v", device_class="cpu-1", kind="cpu", neighbour_variant_id="w",
                neighbour_device_class="cpu-1", neighbour_kind="cpu", alone_s=0.1, beside_s=1 / 3,
                repeats=2**40, trusted=False, measured_at=utc_now(), fingerprint="here",
            )
        )  # fmt: skip
        session.add(
            ProfileTableRow(
                name="t", sha256="0" * 64, row_count=1, devices=["x"], content={"rows": [[None]]}
            )
        )
        session.add(
            DeviceClassRow(
                name="cpu-1", kind="cpu", threads=1, memory_bytes=2**33, facts={},
                price_usd_per_hour=0.04, power_w=1e-300,
            )
        )  # fmt: skip
    return registry


def contents(store: Store) -> dict[str, list[str]]:
    with store.session() as session:
        return {
            table.name: sorted(repr(tuple(row)) for row in session.execute(select(table)))
            for table in TABLES
        }


@pytest.fixture
def other(empty_url: str) -> Store:
    return open_store(empty_url)


class TestCopying:
    def test_every_row_arrives_in_either_database(self, registry: Registry, other: Store) -> None:
        before = contents(registry.store)
        counts = copy_store(registry.store, other)
        assert contents(other) == before
        assert counts == {name: len(rows) for name, rows in before.items()}
        assert counts["variants"] == 2
        with other.transaction() as session:  # the next is numbered after those that came
            session.add(HistoryRow(kind="k", subject="next", reason="", details={}))
        with other.session() as session:
            assert session.scalars(select(func.max(HistoryRow.id))).one() == 2

    def test_it_is_as_at_one_moment_while_others_write(
        self, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = contents(registry.store)
        number_on = copying._number_on

        def write_meanwhile(*arguments: object) -> None:
            with registry.store.transaction() as session:
                session.add(HistoryRow(kind="k", subject="later", reason="", details={}))
            number_on(*arguments)

        monkeypatch.setattr(copying, "_number_on", write_meanwhile)
        with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
            copy_store(registry.store, copy)
            assert contents(copy) == before

    def test_a_target_with_rows_is_left_as_it_is(self, registry: Registry, tmp_path: Path) -> None:
        with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
            with copy.transaction() as session:
                session.add(HistoryRow(kind="k", subject="mine", reason="", details={}))
            before = contents(copy)
            with pytest.raises(InvalidInputError, match="table history has some"):
                copy_store(registry.store, copy)
            assert contents(copy) == before
            copy_store(registry.store, copy, replace=True)
            assert contents(copy) == contents(registry.store)

    def test_what_arrives_changed_is_undone(self, registry: Registry, tmp_path: Path) -> None:
        with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
            with copy.transaction() as session:
                session.execute(
                    text(
                        "CREATE TRIGGER t AFTER INSERT ON history "
                        "BEGIN UPDATE history SET reason = 'x'; END"
                    )
                )
            with pytest.raises(IntegrityError, match=r"table history .* did not arrive whole"):
                copy_store(registry.store, copy)
            assert not any(contents(copy).values())


class TestBackups:
    @pytest.fixture
    def file(self, registry: Registry, tmp_path: Path) -> Path:
        (tmp_path / "a.json").write_text("{}")
        files = {"a.json": tmp_path / "a.json", "none.json": tmp_path / "none.json"}
        write_backup(registry.store, registry.artifacts, tmp_path / "backup.zip", ignore, files)
        return tmp_path / "backup.zip"

    def test_it_restores_to_an_identical_registry(
        self, registry: Registry, file: Path, other: Store, tmp_path: Path
    ) -> None:
        assert file.stat().st_mode & 0o777 == 0o600
        artifacts = ArtifactStore(tmp_path / "others")
        restore_backup(other, artifacts, file, ignore)
        assert contents(other) == contents(registry.store)
        restored = Registry(other, artifacts)
        assert restored.catalog().versions == registry.catalog().versions
        for variant in registry.catalog().versions.values():
            kept = registry.artifacts.read(variant.artifact_sha256)
            assert artifacts.read(variant.artifact_sha256) == kept

    def test_a_file_that_is_there_is_kept(self, registry: Registry, file: Path) -> None:
        before = file.read_bytes()
        with pytest.raises(InvalidInputError, match="a file that is not there yet"):
            write_backup(registry.store, registry.artifacts, file, ignore)
        assert file.read_bytes() == before

    def test_a_missing_artifact_fails_and_leaves_nothing(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        registry.artifacts.remove(registry.variant("pixels/mean/fp32@1").artifact_sha256)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(IntegrityError):
            write_backup(registry.store, registry.artifacts, tmp_path / "backup.zip", ignore)
        assert sorted(tmp_path.iterdir()) == before

    def test_a_variant_removed_meanwhile_is_in_no_backup(
        self, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = registry.variant("pixels/mean/fp32@1")

        def remove_first(sha256: str) -> bytes:
            monkeypatch.undo()
            with registry.store.transaction() as session:
                session.execute(text("DELETE FROM variants WHERE version = 1"))
                session.execute(
                    text("DELETE FROM artifacts WHERE sha256 = :it"), {"it": gone.artifact_sha256}
                )
            registry.artifacts.remove(gone.artifact_sha256)
            raise IntegrityError("gone")

        monkeypatch.setattr(registry.artifacts, "read", remove_first)
        path = tmp_path / "backup.zip"
        rows = write_backup(registry.store, registry.artifacts, path, ignore)
        assert (rows["variants"], rows["artifacts"]) == (1, 1)
        assert f"artifacts/{gone.artifact_sha256}" not in zipfile.ZipFile(path).namelist()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda name, data: data[:-1] if name.startswith("artifacts/") else data, "artifact"),
            (lambda name, data: data * 2 if name.startswith("artifacts/") else data, "larger"),
            (lambda name, data: None if name.startswith("artifacts/") else data, "no item"),
            (
                lambda name, data: data + b"x" if name == "files/a.json" else data,
                "a.json has another sha256",
            ),
            (lambda name, data: data + b"x" if name == "store.db" else data, "another sha256"),
            (lambda name, data: b"{}" if name == "manifest.json" else data, "format"),
            (lambda name, data: b"[]" if name == "manifest.json" else data, "whole"),
            (lambda name, data: b'{"format": 2}' if name == "manifest.json" else data, "Upgrade"),
            (
                lambda name, data: (
                    b'{"format": 1, "files_sha256": [1]}' if name == "manifest.json" else data
                ),
                "whole",
            ),
            (lambda name, data: b" " * 70_000 if name == "manifest.json" else data, "larger"),
        ],
    )
    def test_a_damaged_one_changes_no_row(
        self,
        file: Path,
        tmp_path: Path,
        change: Callable[[str, bytes], bytes | None],
        says: str,
    ) -> None:
        damaged = tmp_path / "damaged.zip"
        with zipfile.ZipFile(file) as whole, zipfile.ZipFile(damaged, "w") as part:
            for name in whole.namelist():
                data = change(name, whole.read(name))
                if data is not None:
                    part.writestr(name, data)
        self.refuses(damaged, tmp_path, says)

    def test_a_damaged_member_is_told_however_it_is_packed(self, tmp_path: Path) -> None:
        path = tmp_path / "packed.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
            file.writestr("manifest.json", b"x" * 1000)
        data = path.read_bytes()
        place = data.index(b"manifest.json") + len(b"manifest.json") + 9
        path.write_bytes(data[:place] + b"\xff" * 8 + data[place + 8 :])
        self.refuses(path, tmp_path, "modelless store backup")

    def test_a_refused_one_leaves_no_files(self, registry: Registry, file: Path) -> None:
        others = ArtifactStore(file.with_name("others"))
        with pytest.raises(InvalidInputError, match="--replace restores over them"):
            restore_backup(registry.store, others, file, ignore)
        assert not others.folder.exists()

    def test_what_variants_were_made_of_comes_back_as_far_as_it_is_there(
        self, registry: Registry, other: Store, tmp_path: Path
    ) -> None:
        source = registry.artifacts.put(b"a source")
        details = {"calibration_file_sha256": "0" * 64, "lineage": {"source_sha256": source}}
        with registry.store.transaction() as session:
            row = HistoryRow(kind=MADE, subject="pixels/mean/fp32@1", reason="", details=details)
            session.add(row)
        path, older = tmp_path / "it.zip", tmp_path / "older.zip"
        write_backup(registry.store, registry.artifacts, path, ignore)
        artifacts = ArtifactStore(tmp_path / "others")
        restore_backup(other, artifacts, path, ignore)
        assert artifacts.read(source) == b"a source"
        with zipfile.ZipFile(path) as whole, zipfile.ZipFile(older, "w") as part:
            for name in whole.namelist():
                if source not in name:
                    part.writestr(name, whole.read(name))
        restore_backup(other, ArtifactStore(tmp_path / "third"), older, ignore, replace=True)
        assert contents(other) == contents(registry.store)

    @pytest.mark.parametrize("data", [b"", b"PK", b"no zip file at all"])
    def test_other_files_are_refused(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x.zip").write_bytes(data)
        self.refuses(tmp_path / "x.zip", tmp_path, "modelless store backup")
        self.refuses(tmp_path / "none.zip", tmp_path, "a file that is there")

    def test_a_name_that_leads_elsewhere_is_refused(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        database = tmp_path / "bad.db"
        with open_store(f"sqlite:///{database}") as copy:
            copy_store(registry.store, copy)
            with copy.transaction() as session:
                session.execute(text("PRAGMA defer_foreign_keys=ON"))
                session.execute(text("UPDATE artifacts SET sha256 = '../../escaped' || sha256"))
                session.execute(
                    text("UPDATE variants SET artifact_sha256 = '../../escaped' || artifact_sha256")
                )
        data = database.read_bytes()
        manifest = {"format": 1, "store_sha256": hashlib.sha256(data).hexdigest()}
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
            file.writestr("manifest.json", json.dumps(manifest))
            file.writestr("store.db", data)
            file.writestr("artifacts/../../escaped", b"x")
        self.refuses(tmp_path / "bad.zip", tmp_path, "artifact sha256")

    def refuses(self, file: Path, folder: Path, says: str) -> None:
        others = ArtifactStore(folder / "others")
        with open_store(f"sqlite:///{folder}/target.db") as target:
            with pytest.raises(ModellessError, match=says):
                restore_backup(target, others, file, ignore, {"a.json": folder / "b.json"})
            assert not (folder / "b.json").exists()
            assert not any(contents(target).values())


class TestLeases:
    def test_the_second_hears_who_has_it_and_since_when(self, store: Store) -> None:
        take_lease(store, "a", "home /a, user ann, host one")
        with pytest.raises(EnvironmentUnfitError) as caught:
            take_lease(store, "b", "home /b")
        assert (
            f"control plane already: home /a, user ann, host one, since {utc_now():%Y-%m-%d}"
            in (str(caught.value))
        )
        assert "'modelless down'" in str(caught.value)

    def test_the_same_one_renews_it(self, store: Store) -> None:
        take_lease(store, "a", "first")
        since = self.row(store).since
        self.age(store, LEASE_S + 1.0)
        take_lease(store, "a", "renewed")
        row = self.row(store)
        assert (row.holder, row.shown, row.since) == ("a", "renewed", since)
        assert (row.expires_at - utc_now()).total_seconds() == pytest.approx(LEASE_S, abs=5.0)

    def test_it_ends_by_itself_or_by_its_holder(self, store: Store) -> None:
        take_lease(store, "a", "")
        self.age(store, LEASE_S + 1.0)
        take_lease(store, "b", "")
        assert self.row(store).holder == "b"
        end_lease(store, "a")
        assert self.row(store).holder == "b"
        end_lease(store, "b")
        take_lease(store, "c", "")

    def row(self, store: Store) -> LeaseRow:
        with store.session() as session:
            return session.scalars(select(LeaseRow)).one()

    def age(self, store: Store, by_s: float) -> None:
        earlier = self.row(store).expires_at - timedelta(seconds=by_s)
        with store.transaction() as session:
            session.execute(update(LeaseRow).values(expires_at=earlier))
