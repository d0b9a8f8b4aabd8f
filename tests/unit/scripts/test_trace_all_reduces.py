"""What a trace says of all-reduces, by traces written by hand."""

import gzip
import json

import pytest


@pytest.fixture
def script(load_script):
    return load_script("trace_all_reduces")


def a_trace(path, *events):
    shown = [{"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in events]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": [{"ph": "M", "name": "process_name"}, *shown]}, file)
    return path


def test_trace_lists_kernels_in_order_of_start(script, tmp_path):
    path = a_trace(
        tmp_path / "rank0.pt.trace.json.gz",
        ("kernel", "gemm", 30.0, 10.0),
        ("cpu_op", "aten::mm", 0.0, 50.0),
        ("kernel", "gemm", 5.0, 10.0),
    )
    assert [(kernel.start_us, kernel.end_us) for kernel in script.kernels(path)] == [(5.0, 15.0), (30.0, 40.0)]


def test_all_reduce_share_is_computed_from_first_to_last_kernel(script):
    reduce = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>"
    ran = [script.Kernel("gemm", 100, 40), script.Kernel(reduce, 140, 10), script.Kernel("gemm", 170, 10),
           script.Kernel(reduce, 180, 20)]
    share = script.share(ran)
    assert (share.window_us, share.busy_us, share.all_reduce_us) == (100, 80, 30)
    assert (share.all_reduces, share.median_us, share.name) == (2, 15, reduce)


@pytest.mark.parametrize(
    "name",
    ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "multimem_all_reduce_kernel<16>",
     "two_shot_all_reduce_kernel", "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"],
)
def test_every_backend_s_all_reduce_is_known(script, name):
    assert script.share([script.Kernel(name, 0, 1)]) is not None


def test_trace_without_all_reduces_has_no_share(script):
    assert script.share([script.Kernel("nvjet_tst_128x64", 0, 1)]) is None
    assert script.share([]) is None


def test_overlapping_kernels_count_once_in_busy_time(script):
    assert script.busy_us([script.Kernel("a", 0, 10), script.Kernel("b", 2, 3), script.Kernel("c", 8, 4)]) == 12


def test_all_reduce_row_shows_smallest_and_largest_wait_of_ranks(script):
    def rank(all_reduce_us, median_us):
        return script.Share(100.0, 90.0, all_reduce_us, 64, median_us, "cross_device_reduce_1stage")

    line = script.row(2, 8, 3.777, [rank(40.0, 9.0), rank(20.0, 6.0)])
    assert line == "| 2 | 8 | 3.78 | 20.0%–40.0% | 6.0–9.0 | 10.0% | 64 | `cross_device_reduce_1stage` |"


def test_a_server_without_all_reduces_says_so(script):
    assert "no all-reduce ran" in script.row(1, 1, 5.0, [])
