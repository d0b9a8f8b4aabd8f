"""triton, hollow: imported, never used on a CPU."""

from sglang_plain_cpu import hollow

hollow.make(
    __name__,
    __version__="3.9.0",
    cdiv=lambda a, b: -(-a // b),
    next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length(),
)
