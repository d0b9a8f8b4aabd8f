"""Names that SGLang's sampler imports; `--sampling-backend pytorch` calls none of them."""


def min_p_sampling_from_probs(*_: object, **__: object) -> None:
    raise NotImplementedError("This bundle has no FlashInfer: start SGLang with --sampling-backend pytorch.")


top_k_top_p_sampling_from_probs = min_p_sampling_from_probs
