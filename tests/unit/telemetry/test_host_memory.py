"""The free memory of the host: what the kernel has available, within the limit of a container."""

import pytest

from pytest_llmperf.telemetry.cpu import free_host_memory_bytes

GIB = 2**30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 40 * GIB),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 40 * GIB),
        ({"memory.max": f"{8 * GIB}\n", "memory.current": f"{5 * GIB}\n"}, 3 * GIB),
        ({"memory.max": f"{8 * GIB}", "memory.current": f"{7 * GIB}", "memory.stat": f"inactive_file {2 * GIB}\n"},
         3 * GIB),
        ({"memory/memory.limit_in_bytes": f"{8 * GIB}", "memory/memory.usage_in_bytes": f"{2 * GIB}"}, 6 * GIB),
        ({"memory/memory.limit_in_bytes": f"{2**63 - 4096}", "memory/memory.usage_in_bytes": "1"}, 40 * GIB),
    ],
)
def test_free_memory_is_the_smaller_of_host_and_container(tmp_path, files, free):
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert free_host_memory_bytes(tmp_path / "meminfo", tmp_path) == free


def test_missing_kernel_files_give_no_size(tmp_path):
    assert free_host_memory_bytes(tmp_path / "meminfo", tmp_path) is None
