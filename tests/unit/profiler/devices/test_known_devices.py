"""The table of published peak rates: matching of names, units, sources."""

from __future__ import annotations

import dataclasses
import re

import pytest

from modelless.profiler.devices.known_devices import KnownDevice, find_known_device, known_devices

# Bounds that a figure off by a thousand cannot meet, by kind.
BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "cpu": {
        "fp32_operations_per_s": (5e11, 2e13),
        "fp16_operations_per_s": (1e12, 5e14),
        "int8_operations_per_s": (1e12, 1e15),
        "bandwidth_bytes_per_s": (1e10, 1e12),
        "memory_bytes": (1 << 30, 1 << 43),
        "cores": (2, 256),
    },
    "gpu": {
        "fp32_operations_per_s": (2e11, 2e14),
        "fp16_operations_per_s": (4e11, 5e15),
        "int8_operations_per_s": (1e13, 1e16),
        "bandwidth_bytes_per_s": (2e10, 1e13),
        "memory_bytes": (4 << 30, 512 << 30),
        "cores": (128, 30_000),
    },
    "npu": {
        "fp32_operations_per_s": (1e13, 1e14),
        "fp16_operations_per_s": (5e13, 1e15),
        "int8_operations_per_s": (1e12, 1e15),
        "bandwidth_bytes_per_s": (4e10, 3e12),
        "memory_bytes": (1 << 30, 128 << 30),
        "cores": (1, 32),
    },
}
FIGURES = tuple(BOUNDS["cpu"])
BY_NAME = {device.name: device for device in known_devices()}


@pytest.mark.parametrize(
    ("loose", "name"),
    [
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx3090", "NVIDIA GeForce RTX 3090"),
        ("QCS8450 (Proxy)", "Qualcomm QCS8450"),
        ("QCS8550 (Proxy)", "Qualcomm QCS8550"),
        ("i9-10940x", "Intel Core i9-10940X"),
        ("Intel(R) Core(TM) i9-10940X CPU @ 3.30GHz", "Intel Core i9-10940X"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "Intel Core i7-12700H"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Intel Xeon E5-2680 v4"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Intel Xeon Platinum 8480+"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("AMD Ryzen 7 8840U w/ Radeon 780M Graphics", "AMD Ryzen 7 8840U"),
        ("Intel(R) Core(TM) Ultra 7 155H", "Intel Core Ultra 7 155H"),
        ("Raspberry Pi 5 Model B Rev 1.0", "Raspberry Pi 5"),
        ("raspberry-pi-4", "Raspberry Pi 4"),
        ("jetson-nano", "NVIDIA Jetson Nano"),
        ("t4", "NVIDIA Tesla T4"),
        ("Tesla T4", "NVIDIA Tesla T4"),
        ("a30", "NVIDIA A30"),
        ("v100", "NVIDIA Tesla V100"),
        ("Tesla V100-SXM2-16GB", "NVIDIA Tesla V100-SXM2"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("hailo8", "Hailo-8"),
        ("hailo8l", "Hailo-8L"),
        ("hailo10h", "Hailo-10H"),
        ("TPU v5e", "Google TPU v5e"),
        ("Apple M1", "Apple M1"),
    ],
)
def test_loose_names(loose: str, name: str) -> None:
    assert find_known_device(loose) is BY_NAME[name]


@pytest.mark.parametrize(
    "name",
    [
        *("", "gpu", "intel-cpu", "Intel(R) Xeon(R) Processor", "a processor", "NVIDIA"),
        # Ambiguous: several devices, whose figures differ.
        *("h100", "p100", "rtx", "jetson", "jetson orin", "Snapdragon", "EPYC", "3090"),
        # Near, but other devices.
        *("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A10G"),
        *("L40", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Apple M1 Pro", "A1"),
        *("i9-10940", "hailo15", "AMD A10", "Xeon Platinum 8480", "Ryzen AI 9 HX 375"),
    ],
)
def test_unknown_and_ambiguous_names(name: str) -> None:
    assert find_known_device(name) is None


def test_a_chip_of_several_units_is_found_by_the_kind_it_is_listed_as() -> None:
    assert find_known_device("QCS8550 (Proxy)", "npu") is not None
    assert find_known_device("QCS8550 (Proxy)", "cpu") is None


def test_figures_in_plain_units() -> None:
    found = BY_NAME["NVIDIA A100-SXM4-80GB"]
    assert found.fp32_operations_per_s == pytest.approx(19.5e12)
    assert found.int8_operations_per_s == pytest.approx(624e12)
    assert found.bandwidth_bytes_per_s == pytest.approx(2.039e12)
    assert (found.memory_bytes, found.cores, found.year) == (80 << 30, 6912, 2020)
    assert BY_NAME["NVIDIA Tesla V100"].fp32_operations_per_s is None  # SXM2 and PCIe differ


@pytest.mark.parametrize("device", known_devices(), ids=lambda device: device.name)
class TestEveryRow:
    def test_it_has_a_source(self, device: KnownDevice) -> None:
        assert re.match(r"https://[\w./%+-]+(, \S.*)?$", device.source)
        published = {name for name in FIGURES if getattr(device, name) is not None}
        assert published
        assert set(device.derived) <= published
        assert all(re.search(r"\d|half", how) for how in device.derived.values())

    def test_its_figures_are_of_the_right_magnitude(self, device: KnownDevice) -> None:
        for name, (low, high) in BOUNDS[device.kind].items():
            value = getattr(device, name)
            assert value is None or low <= value <= high, name
        assert device.year is None or 2012 <= device.year <= 2030

    def test_narrower_formats_are_not_slower(self, device: KnownDevice) -> None:
        rates = [
            device.fp32_operations_per_s,
            device.fp16_operations_per_s,
            device.int8_operations_per_s,
        ]
        known = [rate for rate in rates if rate is not None]
        assert known == sorted(known)

    def test_its_own_name_finds_it(self, device: KnownDevice) -> None:
        assert find_known_device(device.name, device.kind) is device

    def test_products_are_worked_out_rightly(self, device: KnownDevice) -> None:
        for name, how in device.derived.items():
            found = re.match(r"(\d+) cores x ([\d.]+) GHz x (\d+)", how)
            if found:
                cores, clock_ghz, operations = (float(part) for part in found.groups())
                assert getattr(device, name) == pytest.approx(
                    cores * clock_ghz * 1e9 * operations, rel=1e-3
                )
                assert device.cores == cores
            channels = re.match(r"(\d+) channels of DDR\d-(\d+), 8 bytes", how)
            if channels:
                assert getattr(device, name) == pytest.approx(
                    int(channels[1]) * int(channels[2]) * 8e6, rel=0.01
                )


def test_the_table_knows_what_our_tables_speak_of() -> None:
    names = {field.name for field in dataclasses.fields(KnownDevice)}
    assert set(FIGURES) <= names
    assert len(known_devices()) >= 40
