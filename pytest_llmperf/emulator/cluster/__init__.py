"""Several engines as one deployment: data parallel behind a router, prefill apart from decode."""
