"""Hollow: SGLang imports names of FlashInfer with any backend; SGLANG_IS_FLASHINFER_AVAILABLE=false goes with it."""


def bmm_fp8(*_: object, **__: object) -> None:
    """SGLang 0.5.17 imports this function together with its own fp8 kernels."""
    raise NotImplementedError("This bundle has no FlashInfer: it serves no batched fp8 products.")
