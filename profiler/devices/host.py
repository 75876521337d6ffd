"""Reads device facts from the host: /proc, /sys, the control group, the GPU driver.

Every reader takes the root of the file tree, so that tests give it a tree of their own. It returns
"unknown" instead of failing, because an unusual host must not stop a measurement.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from modelless.profiler.devices.device import DeviceFacts, GpuFacts
from modelless.variants.runtimes.engines import ENGINES

NVIDIA_SMI_TIMEOUT_S = 5.0

_ISA_X86 = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "avx_vnni", "avx_vnni_int8", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
# Linux's name for an Arm feature -> the name people use.
_ISA_ARM = {
    "asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2", "sme": "sme",
}  # fmt: skip
_NO_LIMIT_BYTES = 1 << 60  # control groups of version 1 write "no limit" as a number near 2**63


def read_facts(
    root: Path = Path("/"),
    *,
    affinity_cores: int | None = None,
    query_gpus: Callable[[], str] | None = None,
) -> DeviceFacts:
    """Returns the facts of this host; it starts only ``nvidia-smi``, for 5 s at most.

    Args:
        affinity_cores: cores this process may run on; asked of the operating system if None.
        query_gpus: returns ``nvidia-smi``'s CSV; the real one if None.
    """
    cpuinfo = _read(root / "proc/cpuinfo")
    cores = affinity_cores if affinity_cores is not None else len(allowed_cpus())
    quota_cores = _quota_cores(root)
    usable = cores if quota_cores is None else min(cores, int(quota_cores + 1e-9))
    limits = [
        size for size in (_memory_total_bytes(root), _memory_limit_bytes(root)) if size is not None
    ]
    return DeviceFacts(
        cpu_model=_cpu_model(cpuinfo),
        architecture=platform.machine() or "unknown",
        cores=max(1, usable),
        quota_cores=quota_cores,
        isa=_isa(cpuinfo),
        cache_bytes=_caches(root),
        memory_bytes=min(limits, default=0),
        gpus=parse_gpus((query_gpus or _nvidia_smi)()),
        engines=engine_versions(),
        threads_per_core=_threads_per_core(root),
    )


def allowed_cpus() -> frozenset[int]:
    """Returns the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def engine_versions() -> dict[str, str]:
    """Returns the version of each installed engine by its name."""
    versions = {engine.value: entry.version for engine, entry in ENGINES.items()}
    return {name: version for name, version in versions.items() if version is not None}


def parse_gpus(text: str) -> tuple[GpuFacts, ...]:
    """Returns the cards in rows of name, memory [MiB], driver version, power limit [W]."""
    cards = []
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) != 4 or not fields[1].isdigit():
            continue
        power_w = float(fields[3]) if re.fullmatch(r"\d+(\.\d+)?", fields[3]) else None
        cards.append(GpuFacts(fields[0], int(fields[1]) << 20, fields[2], power_w))
    return tuple(cards)


def _nvidia_smi() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = "--query-gpu=name,memory.total,driver_version,power.limit"
    try:
        return subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""  # nothing can run on a card whose driver hangs or fails


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first(cpuinfo: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _cpu_model(cpuinfo: str) -> str:
    name = _first(cpuinfo, "model name") or _first(cpuinfo, "Model")
    if name:
        # A virtual machine's processor often has only the name "Intel(R) Xeon(R) Processor".
        family, model = _first(cpuinfo, "cpu family"), _first(cpuinfo, "model")
        named = re.search(r"\d{3}", name) is not None
        return name if named or not family else f"{name} (family {family} model {model})"
    part = _first(cpuinfo, "CPU part")
    if part:
        return f"Arm {_first(cpuinfo, 'CPU implementer')} part {part}"
    return platform.processor() or platform.machine() or "unknown"


def _isa(cpuinfo: str) -> tuple[str, ...]:
    flags = set(_first(cpuinfo, "flags").split())
    features = set(_first(cpuinfo, "Features").split())
    found = {name for name in _ISA_X86 if name in flags}
    found |= {name for flag, name in _ISA_ARM.items() if flag in features}
    return tuple(sorted(found))


def _caches(root: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _read(index / "level").strip(), _read(index / "type").strip()
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size").strip())
        if not level or size is None or kind == "Instruction":
            continue
        suffix = "d" if kind == "Data" else ""
        scale = {"": 0, "K": 10, "M": 20, "G": 30}[size.group(2)]
        sizes[f"L{level}{suffix}"] = int(size.group(1)) << scale
    return sizes


def _threads_per_core(root: Path) -> int | None:
    """Returns how many numbers Linux lists for one core: ``0-1``, ``0,64``."""
    text = _read(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list").strip()
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return None
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return sum(each[-1] - each[0] + 1 for each in ends)


def _memory_total_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return int(found.group(1)) << 10
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yields this process's control group and its ancestors, of version 2 and of version 1."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for base in bases:
            # Inside a container the path may be the host's and the group mounted at the base
            # itself.
            for depth in range(len(parts), -1, -1):
                yield base.joinpath(*parts[:depth])


def _quota_cores(root: Path) -> float | None:
    quotas: list[float] = []
    for folder in _group_folders(root, "cpu"):
        fields = _read(folder / "cpu.max").split()
        if not fields:
            fields = [
                _read(folder / "cpu.cfs_quota_us").strip(),
                _read(folder / "cpu.cfs_period_us").strip(),
            ]
        if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min((quota for quota in quotas if quota > 0.0), default=None)


def _memory_limit_bytes(root: Path) -> int | None:
    limits: list[int] = []
    for folder in _group_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and 0 < int(text) < _NO_LIMIT_BYTES:
                limits.append(int(text))
    return min(limits, default=None)
