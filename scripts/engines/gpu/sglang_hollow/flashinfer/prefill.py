"""A name that SGLang's attention over pictures imports."""


def cudnn_batch_prefill_with_kv_cache(*_: object, **__: object) -> None:
    raise NotImplementedError("This bundle has no FlashInfer: it serves text only.")
