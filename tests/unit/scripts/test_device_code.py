"""Thinning of CUDA libraries, on ELF files that are made here."""

import struct

import pytest

PTX, CODE = 1, 2


@pytest.fixture(scope="module")
def device_code(load_script):
    return load_script("device_code")


def fat_binary(*images):
    """(kind, architecture, bytes) each."""
    body = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(content), architecture) + content
        for kind, architecture, content in images
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*groups, section=b".nv_fatbin"):
    """A 64-bit ELF file with device code, eight bytes of padding after each group, and some host code."""
    device, host = b"".join(group + bytes(8) for group in groups), b"\x90" * 64
    names = b"\0" + section + b"\0.text\0.shstrtab\0"
    begin = 64
    table = begin + len(device) + len(host) + len(names)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64,
                                                             3, 2)
    places = [(1, begin, len(device)), (len(section) + 2, begin + len(device), len(host)),
              (len(section) + 8, begin + len(device) + len(host), len(names))]  # fmt: skip
    sections = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in places)
    return header + device + host + names + sections


@pytest.fixture
def thinned(device_code, tmp_path):
    def thinned(content, capability=90):
        path = tmp_path / "lib.so"
        path.write_bytes(content)
        saved = device_code.thin(path, capability)
        return path.read_bytes(), saved

    return thinned


def test_machine_code_of_other_gpus_becomes_zeros(thinned):
    original = library(fat_binary((CODE, 80, b"A" * 40), (CODE, 90, b"H" * 40), (PTX, 80, b"P" * 24)))
    after, saved = thinned(original)
    assert len(after) == len(original)
    assert saved == 64
    assert b"H" * 40 in after
    assert b"A" not in after.replace(b"\x7fELF", b"")
    assert b"PP" not in after
    assert after.replace(bytes(1), b"") == original.replace(b"A" * 40, b"").replace(b"P" * 24, b"").replace(
        bytes(1), b""
    )


@pytest.mark.parametrize(("capability", "expected"), [(75, "T"), (80, "A"), (86, "AB"), (89, "ABL")])
def test_device_code_of_earlier_minor_version_is_kept_and_later_is_removed(thinned, capability, expected):
    codes = [(CODE, number, letter * 40) for number, letter in ((75, b"T"), (80, b"A"), (86, b"B"), (89, b"L"))]
    after, _ = thinned(library(*(fat_binary(code) for code in codes)), capability)
    assert "".join(letter for letter in "TABL" if letter.encode() * 40 in after) == expected


def test_ptx_is_kept_if_no_device_code_can_run(thinned):
    original = library(fat_binary((CODE, 80, b"A" * 40), (PTX, 80, b"P" * 24), (PTX, 100, b"B" * 24)))
    after, saved = thinned(original)
    assert b"P" * 24 in after
    assert b"B" * 24 not in after
    assert saved == 64


def test_each_fat_binary_is_thinned_separately(thinned):
    original = library(fat_binary((CODE, 90, b"H" * 16)), fat_binary((CODE, 75, b"T" * 16), (PTX, 75, b"P" * 16)))
    after, _ = thinned(original)
    assert (b"H" * 16 in after, b"T" * 16 in after, b"P" * 16 in after) == (True, False, True)


@pytest.mark.parametrize("content", [b"", b"text that names .nv_fatbin", library(section=b".nv_fatbim"), library()])
def test_a_file_without_device_code_is_left_alone(thinned, content):
    assert thinned(content) == (content, 0)
