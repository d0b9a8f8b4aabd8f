"""How the time of a trace is divided, by traces written by hand."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from pytest_llmperf.errors import EngineError
from pytest_llmperf.telemetry.torch_trace import breakdown, category_of, trace_events

DATA = Path(__file__).parents[2] / "data" / "traces"
ALL_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>"


def a_trace(folder, *events):
    """Events of (category, name, begin in µs, duration in µs) or with a thread at the end."""
    shown = [
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": thread[0] if thread else 1,
         "args": {"External id": 7}}
        for cat, name, ts, dur, *thread in events
    ]
    path = folder / "rank0.pt.trace.json.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *shown], "end": 1}, file)
    return path


def test_kernels_divide_window_into_categories_and_idle_time(tmp_path):
    path = a_trace(
        tmp_path,
        ("cpu_op", "aten::mm", 0.0, 500.0),
        ("kernel", "void flash_fwd_splitkv_kernel<...>", 100.0, 30.0),
        ("kernel", "nvjet_tst_128x64", 130.0, 20.0),
        ("kernel", ALL_REDUCE, 160.0, 10.0),
        ("kernel", "triton_poi_fused_mul", 180.0, 20.0),
    )
    rank = breakdown(path)
    assert (rank.device, rank.window_us, rank.idle_us) == ("gpu", 100.0, 20.0)
    assert (rank.attention_us, rank.matrix_us, rank.communication_us, rank.other_us) == (30.0, 20.0, 10.0, 20.0)
    assert rank.shares == {"attention": 0.3, "matrix": 0.2, "communication": 0.1, "other": 0.2, "idle": 0.2}


def test_communication_behind_computation_counts_as_computation(tmp_path):
    path = a_trace(tmp_path, ("kernel", "gemm", 0.0, 40.0), ("kernel", ALL_REDUCE, 30.0, 30.0))
    rank = breakdown(path)
    assert (rank.matrix_us, rank.communication_us, rank.idle_us) == (40.0, 20.0, 0.0)
    assert (rank.all_reduces, rank.all_reduce_us, rank.all_reduce_share) == (1, 30.0, 0.5)


def test_nested_operators_are_counted_once_in_the_outer_category(tmp_path):
    path = a_trace(
        tmp_path,
        ("cpu_op", "vllm::unified_attention_with_output", 0.0, 50.0),
        ("cpu_op", "aten::bmm", 10.0, 20.0),
        ("cpu_op", "aten::linear", 50.0, 40.0),
        ("cpu_op", "aten::t", 55.0, 5.0),
        ("cpu_op", "aten::add", 95.0, 5.0),
    )
    rank = breakdown(path)
    assert rank.device == "cpu"
    assert (rank.attention_us, rank.matrix_us, rank.other_us, rank.idle_us) == (50.0, 40.0, 5.0, 5.0)


def test_trace_without_kernels_shows_busiest_thread(tmp_path):
    path = a_trace(
        tmp_path,
        ("cpu_op", "aten::add", 0.0, 1000.0, "front end"), ("cpu_op", "aten::add", 5000.0, 10.0, "front end"),
        ("cpu_op", "_C::onednn_mm", 100.0, 3000.0, "model"),
    )
    rank = breakdown(path)
    assert (rank.matrix_us, rank.window_us) == (3000.0, 3000.0)


def test_all_reduces_have_number_median_and_most_frequent_name(tmp_path):
    path = a_trace(
        tmp_path, ("kernel", ALL_REDUCE, 0.0, 10.0), ("kernel", ALL_REDUCE, 20.0, 20.0),
        ("kernel", "multimem_all_reduce_kernel<16>", 50.0, 60.0),
    )
    rank = breakdown(path)
    assert (rank.all_reduces, rank.all_reduce_median_us, rank.all_reduce_name) == (3, 20.0, ALL_REDUCE)


def test_trace_without_kernels_and_operators_has_no_breakdown(tmp_path):
    assert breakdown(a_trace(tmp_path, ("user_annotation", "execute_context_0", 0.0, 10.0))) is None


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("multimem_all_reduce_kernel<16>", "communication"),
        ("two_shot_all_reduce_kernel", "communication"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport", "communication"),
        ("_C::shm_allreduce", "communication"),
        ("_C::shm_all_gather", "communication"),
        ("c10d::allreduce_", "communication"),
        ("gloo:all_reduce", "communication"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", "attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", "attention"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("vllm::unified_kv_cache_update", "attention"),
        ("aten::addmm", "matrix"),
        ("_C::onednn_mm", "matrix"),
        ("nvjet_tst_192x144_64x4_1x2_h_bz_coopB_TNT", "matrix"),
        ("void marlin::Marlin<...>", "matrix"),
        ("fused_moe_kernel", "matrix"),
        ("triton_red_fused_rms_norm", "other"),
        ("aten::comment", "other"),
        ("Memcpy HtoD", "other"),
    ],
)
def test_kernel_name_decides_category(name, category):
    assert category_of(name) == category


def test_events_are_read_across_chunks(tmp_path):
    path = a_trace(tmp_path, *(("kernel", "gemm", 10.0 * at, 5.0) for at in range(100)))
    whole = list(trace_events(path))
    assert list(trace_events(path, chunk_characters=7)) == whole
    assert len(whole) == 101


def test_large_trace_is_never_whole_in_memory(tmp_path):
    path = a_trace(tmp_path, *(("kernel", "gemm" * 500, float(at), 0.5) for at in range(15_000)))
    unpacked_bytes = len(gzip.decompress(path.read_bytes()))
    tracemalloc.start()
    assert breakdown(path).window_us == 14_999.5
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert unpacked_bytes > 30_000_000
    assert peak_bytes < unpacked_bytes / 2


def test_cut_off_trace_is_refused(tmp_path):
    path = a_trace(tmp_path, *(("kernel", "gemm", 10.0 * at, 5.0) for at in range(1000)))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(EngineError, match=r"json\.gz cannot be read"):
        breakdown(path)


@pytest.mark.parametrize("text", ['{"traceEvents": [{"ph": "X"', '{"traceEvents": [', "[]", ""])
def test_file_without_whole_list_of_events_is_refused(tmp_path, text):
    path = tmp_path / "rank0.trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(EngineError, match="was cut off, or is no trace"):
        breakdown(path)


def test_file_that_is_not_gzipped_is_refused(tmp_path):
    path = tmp_path / "rank0.trace.json.gz"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(EngineError, match="cannot be read"):
        breakdown(path)


def test_event_without_duration_is_refused(tmp_path):
    path = tmp_path / "rank0.trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"cat": "kernel", "name": "gemm", "ts": 1.0}]}'))
    with pytest.raises(EngineError, match="without name, time or duration"):
        breakdown(path)


def test_endless_event_is_refused(tmp_path):
    path = tmp_path / "rank0.trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"x" * 50_000))
    with pytest.raises(EngineError, match="more than 10,000 characters"):
        list(trace_events(path, chunk_characters=1000, most_characters=10_000))


def test_real_trace_of_an_h100_agrees_with_the_table_of_the_profiler():
    """PyTorch 2.11 on an H100: 20 steps of 8 layers, without the arguments of events. The numbers are those of
    `profile.key_averages()`, self device time in µs: attention, matrix products, norm and activation."""
    rank = breakdown(DATA / "h100_decoder.trace.json.gz")
    assert rank.device == "gpu"
    assert rank.attention_us == pytest.approx(10113.971, abs=0.1)
    assert rank.matrix_us == pytest.approx(2794.412, abs=0.1)
    assert rank.other_us == pytest.approx(552.998 + 336.227, abs=150)  # attention's memsets of 1 µs stand apart
    assert (rank.communication_us, rank.all_reduces) == (0, 0)
    assert 0.6 < rank.shares["idle"] < 0.7
