"""The work of one step, as input of the step-time model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Sums over the sequences of one step. `kv_tokens` and `attention_pairs` are arrays with a value per step if the
    load stands for consecutive steps in which only these two numbers change.

    Args:
        sequences: rows of the batch.
        tokens: new tokens, of prompts and of decoding sequences (drafts included).
        prefill_tokens: new tokens that belong to prompts.
        sampled: rows of logits.
        kv_tokens: tokens of KV cache that attention reads, the new ones included.
        attention_pairs: query–key pairs: Σ new × (context before + (new + 1)/2).
        drafted: tokens that a draft model proposes.
    """

    sequences: int
    tokens: int
    prefill_tokens: int
    sampled: int
    kv_tokens: int | npt.NDArray[np.int64]
    attention_pairs: float | npt.NDArray[np.float64]
    drafted: int = 0
