"""Thin CUDA libraries to one compute capability: zeros replace the machine code of other GPUs and compress well.

The size and layout of a library do not change, so no relocation is needed. NVIDIA does not document the section and its
headers. The script reads only fields whose effect `cuobjdump --list-elf` shows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECTION = b".nv_fatbin"
MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
_FAT_HEADER = struct.Struct("<IHHQ")       # magic, version, length of this header, bytes that follow it
_IMAGE_HEADER = struct.Struct("<HHIQ12xI")  # kind, …, length of this header, bytes that follow it, …, architecture


@dataclass(frozen=True)
class Image:
    """One kernel image of a library.

    Args:
        group: offset of the image's fat binary. The driver loads one image per fat binary.
        kind: PTX or MACHINE_CODE.
        architecture: compute capability, 90 for 9.0.
        offset, size: of its bytes in the file.
    """

    group: int
    kind: int
    architecture: int
    offset: int
    size: int

    def runs_on(self, capability: int) -> bool:
        same_major = self.architecture // 10 == capability // 10
        return self.kind == MACHINE_CODE and same_major and self.architecture <= capability

    def compiles_for(self, capability: int) -> bool:
        return self.kind == PTX and self.architecture <= capability


def thin(library: Path, capability: int) -> int:
    """Overwrite what a GPU of that capability cannot use; PTX stays where a group has no machine code for it.

    Returns: bytes that became zeros; 0 for a file without device code.
    """
    content = bytearray(library.read_bytes())
    fat_binaries = list(images(content))
    native = {image.group for image in fat_binaries if image.runs_on(capability)}
    wasted = [
        image for image in fat_binaries
        if not image.runs_on(capability) and (image.group in native or not image.compiles_for(capability))
    ]
    for image in wasted:
        content[image.offset : image.offset + image.size] = bytes(image.size)
    if wasted:
        library.write_bytes(content)
    return sum(image.size for image in wasted)


def images(content: bytes | bytearray) -> Iterator[Image]:
    """Every kernel image of a 64-bit ELF file; none of any other file."""
    place = _section(content)
    if place is None:
        return
    at, end = place
    while at + _FAT_HEADER.size <= end:
        magic, _, header, length = _FAT_HEADER.unpack_from(content, at)
        if magic != MAGIC:
            at += 8  # padding between fat binaries
            continue
        yield from _in_group(content, at, at + header, at + header + length)
        at += header + length


def _in_group(content: bytes | bytearray, group: int, at: int, end: int) -> Iterator[Image]:
    while at + _IMAGE_HEADER.size <= end:
        kind, _, header, length, architecture = _IMAGE_HEADER.unpack_from(content, at)
        if header == 0:
            return
        yield Image(group, kind, architecture, at + header, length)
        at += header + length


def _section(content: bytes | bytearray) -> tuple[int, int] | None:
    """Begin and end of the section with device code."""
    if content[:5] != b"\x7fELF\x02" or SECTION not in content:
        return None
    table, = struct.unpack_from("<Q", content, 0x28)
    entry, count, strings = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", content, table + entry * number) for number in range(count)]
    names = headers[strings][4]
    for name, _, _, _, offset, size in headers:
        if content.startswith(SECTION + b"\0", names + name):
            return offset, offset + size
    return None
