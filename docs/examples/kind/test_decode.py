from pytest_llmperf import by_kind, closed, random_tokens, vllm


@by_kind(rtx_5090={"limit": "tpot_mean <= 15ms"}, h200={"limit": "tpot_mean <= 8ms"})
def test_decode_step(case, perf):
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=4096),
                       random_tokens(input=128, output=32, arrivals=closed(1), requests=10))
    perf.check(run, case.limit, "error_rate == 0")
