"""Hollow: SGLang imports names of FlashInfer whatever backend it uses. SGLANG_IS_FLASHINFER_AVAILABLE=false goes with it."""
