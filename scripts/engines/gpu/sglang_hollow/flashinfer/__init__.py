"""Hollow: SGLang imports names of FlashInfer with any backend; SGLANG_IS_FLASHINFER_AVAILABLE=false goes with it."""
