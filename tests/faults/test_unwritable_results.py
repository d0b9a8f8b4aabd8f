"""Faults 62 and 63 for results: a full disk, a place where nothing may be written."""

import json

FULL = """
import resource

def test_x(perf):
    spec = stub(STUB_ITL_S="0.001")
    run = perf.measure(spec, FEW)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        perf.measure(spec, FEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""
SOUND = """
def test_x(perf):
    perf.check(perf.measure(stub(), FEW), "error_rate == 0")
"""


def test_full_disk_makes_test_an_error_and_leaves_no_partial_file(suite):
    """Fault 62: no file may grow beyond a kilobyte, as if the disk held no more; what was written before is whole."""
    result, junit = suite.run(FULL)
    assert result.ret == 10
    assert len(list(junit.iter("error"))) == 1  # whoever meets it first: the load process, or we
    (run_file,) = suite.run_files().values()
    assert len(run_file["measurements"][0]["runs"]) == 3
    assert not list(suite.folder.glob(".llmperf/runs/*/tests/*.tmp"))
    suite.nothing_left()


def test_unwritable_run_folder_is_replaced_and_reported(suite):
    """Fault 63: a file stands where the folder should, which stops the superuser, too."""
    (suite.folder / "occupied").touch()
    (suite.folder / "elsewhere").mkdir()
    (suite.folder / "llmperf-runs").symlink_to(suite.folder / "elsewhere")  # planted by somebody in its TMPDIR
    result, _ = suite.run(SOUND, "--llmperf-runs=occupied/runs")
    assert result.ret == 0
    (place,) = suite.folder.glob("llmperf-runs-*")
    result.stdout.fnmatch_lines([f"*occupied/runs cannot be written: results go to {place}.*--llmperf-runs=DIR.*"])
    assert place.lstat().st_mode & 0o777 == 0o700
    assert list((suite.folder / "elsewhere").iterdir()) == []
    (path,) = place.glob("*/tests/*.json")
    assert json.loads(path.read_text())["checks"][0]["verdict"] == "PASS"
