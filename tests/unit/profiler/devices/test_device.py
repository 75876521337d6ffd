"""Device facts read from a tree of files, their fingerprint, and default device classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from modelless.profiler.devices.device import DeviceFacts, GpuFacts, default_device_classes
from modelless.profiler.devices.host import parse_gpus, read_facts

X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse4_2 avx avx2 fma avx512_vnni amx_int8 ht

processor\t: 1
model name\t: Intel(R) Xeon(R) Processor
"""
ARM = """processor : 0
Features : fp asimd asimddp i8mm
CPU implementer : 0x41
CPU part : 0xd40
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def facts_of(root: Path, files: dict[str, str], cores: int = 4) -> DeviceFacts:
    everything = {"proc/meminfo": "MemTotal:  8388608 kB\n"} | files
    return read_facts(tree(root, everything), affinity_cores=cores, query_gpus=lambda: "")


def test_an_x86_machine(tmp_path: Path) -> None:
    cache = "sys/devices/system/cpu/cpu0/cache/index"
    facts = facts_of(
        tmp_path,
        {
            "proc/cpuinfo": X86,
            f"{cache}0/level": "1\n",
            f"{cache}0/type": "Data\n",
            f"{cache}0/size": "48K\n",
            f"{cache}1/level": "1\n",
            f"{cache}1/type": "Instruction\n",
            f"{cache}1/size": "32K\n",
            f"{cache}2/level": "2\n",
            f"{cache}2/type": "Unified\n",
            f"{cache}2/size": "2M\n",
        },
    )
    # The name says nothing, so family and model are added.
    assert facts.cpu_model == "Intel(R) Xeon(R) Processor (family 6 model 143)"
    assert facts.isa == ("amx_int8", "avx", "avx2", "avx512_vnni", "fma", "sse4_2")
    assert facts.cache_bytes == {"L1d": 48 << 10, "L2": 2 << 20}
    assert (facts.cores, facts.quota_cores, facts.memory_bytes) == (4, None, 8 << 30)


def test_an_arm_machine(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"proc/cpuinfo": ARM})
    assert facts.cpu_model == "Arm 0x41 part 0xd40"
    assert facts.isa == ("dotprod", "i8mm", "neon")


@pytest.mark.parametrize(
    ("files", "cores", "quota", "memory"),
    [
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/box/memory.max": "1073741824\n",
            },
            2,
            2.5,
            1 << 30,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box\n5:memory:/box\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1,
            0.5,
            8 << 30,
        ),
        (
            # In a container the host's path does not exist: the group is mounted at the base.
            {
                "proc/self/cgroup": "0::/../elsewhere\n",
                "sys/fs/cgroup/cpu.max": "300000 100000\n",
            },
            3,
            3.0,
            8 << 30,
        ),
        ({"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.max": "max\n"}, 4, None, 8 << 30),
    ],
)  # fmt: skip
def test_control_groups_of_both_versions(
    tmp_path: Path, files: dict[str, str], cores: int, quota: float | None, memory: int
) -> None:
    facts = facts_of(tmp_path, files)
    assert (facts.cores, facts.quota_cores, facts.memory_bytes) == (cores, quota, memory)


def test_a_host_that_tells_nothing_still_has_facts(tmp_path: Path) -> None:
    facts = read_facts(tmp_path, affinity_cores=1, query_gpus=lambda: "garbage\n1,2\n")
    assert facts.cores == 1
    assert facts.isa == ()
    assert facts.gpus == ()
    assert len(facts.fingerprint) == 16


def test_cards_are_read_from_the_drivers_table() -> None:
    text = "NVIDIA H200, 143771, 570.1, 700.00\nNVIDIA L4, 23034, 570.1, [N/A]\n"
    assert parse_gpus(text) == (
        GpuFacts("NVIDIA H200", 143771 << 20, "570.1", 700.0),
        GpuFacts("NVIDIA L4", 23034 << 20, "570.1", None),
    )


def test_this_host_has_facts() -> None:
    facts = read_facts(query_gpus=lambda: "")
    assert facts.cores >= 1
    assert facts.memory_bytes > 0
    assert facts.fingerprint == read_facts(query_gpus=lambda: "").fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_model": "Another"},
        {"cores": 4},
        {"isa": ("avx2", "avx512_vnni")},
        {"cache_bytes": {"L2": 1}},
        {"quota_cores": 1.5},
    ],
)
def test_the_fingerprint_changes_with_what_matters(make: Any, change: dict[str, Any]) -> None:
    assert dataclasses.replace(make.facts, **change).fingerprint != make.facts.fingerprint


def test_the_fingerprint_ignores_what_does_not_matter(make: Any) -> None:
    card = GpuFacts("L4", 1 << 34, "570.1")
    other = dataclasses.replace(make.facts, memory_bytes=1, gpus=(card,))
    assert other.fingerprint == make.facts.fingerprint
    assert other.fingerprint_of("gpu") != make.facts.fingerprint_of("gpu")
    assert (other.device_name("gpu"), other.device_name()) == ("L4", make.facts.cpu_model)


def test_another_engine_is_no_other_machine(make: Any) -> None:
    more = dataclasses.replace(make.facts, engines={**make.facts.engines, "tensorrt": "10.13.0"})
    assert more.fingerprint == make.facts.fingerprint
    assert more.fingerprint_of("gpu") == make.facts.fingerprint_of("gpu")
    assert more.engine_names == {"onnxruntime-cpu-1.20.1", "tensorrt-10.13.0"}


def test_default_classes_follow_the_cores(make: Any) -> None:
    one, two = default_device_classes(make.facts)
    assert (one.name, one.threads, two.name, two.threads) == ("cpu-1", 1, "cpu-2", 2)
    assert two.memory_bytes == 2 * one.memory_bytes == make.facts.memory_bytes // 2
    assert two.price_usd_per_hour == 2 * one.price_usd_per_hour
    lone = dataclasses.replace(make.facts, cores=1)
    assert [device.name for device in default_device_classes(lone)] == ["cpu-1"]


def test_a_card_is_a_class_of_its_own(make: Any) -> None:
    cards = (GpuFacts("H200", 100 << 30, "570.1", 700.0), GpuFacts("L4", 1 << 34, "570.1"))
    *_, card = default_device_classes(dataclasses.replace(make.facts, gpus=cards))
    assert (card.name, card.kind, card.memory_bytes) == ("gpu-1", "gpu", 80 << 30)
    assert card.power_w == 700.0
    *_, other = default_device_classes(dataclasses.replace(make.facts, gpus=cards[1:]))
    assert other.power_w == 300.0


@pytest.mark.parametrize(
    ("siblings", "threads"),
    [("0\n", 1), ("0-1\n", 2), ("0,64\n", 2), ("0-3,8-11\n", 8), ("?", None), ("", None)],
)
def test_threads_that_share_a_core(tmp_path: Path, siblings: str, threads: int | None) -> None:
    name = "sys/devices/system/cpu/cpu0/topology/thread_siblings_list"
    assert facts_of(tmp_path, {name: siblings}).threads_per_core == threads


def test_threads_that_share_a_core_do_not_make_measurements_stale(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"proc/cpuinfo": X86})
    assert dataclasses.replace(facts, threads_per_core=2).fingerprint == facts.fingerprint
