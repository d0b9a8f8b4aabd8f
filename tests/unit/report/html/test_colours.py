"""Colours of the report for readers with a colour vision deficiency: verdicts, bars and chart lines stay apart."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf.report import html

CSS = (Path(html.__file__).parent / "report.css").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in re.findall(
    r":root(?:\[data-scheme=\"dark\"\])? \{(.*?)\}", CSS, re.DOTALL)[:2])
# Machado, Oliveira and Fernandes 2009, severity 1: what remains of linear RGB.
DEFICIENCIES = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def lab(colour, deficiency):
    share = np.array([int(colour[at:at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.array(DEFICIENCIES[deficiency]) @ linear, 0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours, names, deficiency):
    """The smallest CIE76 distance between two of the colours."""
    pairs = combinations(names, 2)
    return min((float(np.linalg.norm(lab(colours[a], deficiency) - lab(colours[b], deficiency))), a, b)
               for a, b in pairs)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("names", [("pass", "fail"), ("room", "beyond"), ("side-0", "side-1"),
                                   ("pass", "fail", "error", "open"), ("side-0", "side-1", "side-2", "side-3")])
def test_colours_differ_for_every_colour_vision(names, colours, deficiency):
    least = 30 if len(names) == 2 else 20 if "pass" in names else 10  # 2.3 is just noticeable
    assert nearest(colours, names, deficiency)[0] >= least


def test_dark_scheme_of_the_system_has_the_colours_of_the_button():
    blocks = re.findall(r"\{((?:\s*--[a-z0-9-]+: #[0-9a-f]{6};)+)\s*\}", CSS)
    assert [sorted(re.findall(r"--[^;]+;", block)) for block in blocks[1:2]] == [
        sorted(re.findall(r"--[^;]+;", block)) for block in blocks[2:3]]
