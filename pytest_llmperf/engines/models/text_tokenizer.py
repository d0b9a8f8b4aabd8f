"""A tokenizer that a test names: it counts received text, and gives the words of prompts with a stated length."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.errors import SpecError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
#: Fewer words would repeat within a block of the prefix cache.
LEAST_WORDS = 64
MOST_WORDS = 9_000
_WORD = re.compile(r"[a-z]{2,12}")


class TextTokenizer:
    """Counts the tokens of texts.

    Args:
        name: name of the tokenizer as the test writes it.
        tokenizer: of the library `tokenizers`.
    """

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def counts(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Number of tokens in each piece of a text. A token belongs to the piece that completes the token."""
        ends = list(accumulate(map(len, texts)))
        tokens = [0] * len(texts)
        for _, end in self._tokenizer.encode("".join(texts), add_special_tokens=False).offsets:
            tokens[min(bisect_left(ends, end), len(texts) - 1)] += 1
        return tuple(tokens)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words that are one token each, at the begin of a text and after a space.

        Raises:
            SpecError: the vocabulary has too few such words.
        """
        ids = sorted(self._tokenizer.get_vocab().values())
        texts = (self._tokenizer.decode([token]).strip() for token in ids)
        candidates = list(dict.fromkeys(text for text in texts if _WORD.fullmatch(text)))
        pairs = self._tokenizer.encode_batch([f"{word} {word}" for word in candidates], add_special_tokens=False)
        words = [word for word, encoded in zip(candidates, pairs, strict=True) if len(encoded.ids) == 2][:MOST_WORDS]
        if len(words) < LEAST_WORDS:
            raise SpecError(f"tokenizer={self.name!r} has {len(words)} words of one token, and prompts of a stated "
                            f"length need {LEAST_WORDS}. Nothing was sent. Name the tokenizer of the model, or leave "
                            "tokenizer= out.")
        return tuple(words)


def text_tokenizer(name: str, root: Path, environ: Mapping[str, str] | None = None) -> TextTokenizer:
    """The tokenizer of that name, from this machine's disk alone.

    Args:
        name: a file, a folder with tokenizer.json, or a name in the local cache of the Hugging Face hub.
        root: project root, for relative paths.
        environ: the environment variables; None for those of this process.

    Raises:
        SpecError: the library is not installed, or there is no such tokenizer.
    """
    return _loaded(name, _file(name, root, os.environ if environ is None else environ))


@lru_cache(maxsize=8)
def _loaded(name: str, path: Path) -> TextTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SpecError(f"tokenizer={name!r} needs the package tokenizers, which is not installed. Nothing was sent. "
                        "Run `pip install tokenizers`.") from None
    try:
        return TextTokenizer(name, Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises Exception itself
        raise SpecError(f"tokenizer={name!r}: {path} cannot be read as a tokenizer.json ({error}). Nothing was sent. "
                        "Name the file of the model's tokenizer.") from error


def _file(name: str, root: Path, environ: Mapping[str, str]) -> Path:
    place = root / Path(name).expanduser()
    if place.is_file():
        return place
    if (place / FILE).is_file():
        return place / FILE
    hub = hub_folder(environ) / f"models--{name.replace('/', '--')}"
    snapshots = sorted(hub.glob(f"snapshots/*/{FILE}"), key=lambda path: path.stat().st_mtime)
    reference = hub / "refs" / "main"
    if reference.is_file() and (current := hub / "snapshots" / reference.read_text().strip() / FILE) in snapshots:
        return current
    if snapshots:
        return snapshots[-1]
    raise SpecError(f"tokenizer={name!r}: there is no file {place}, no {FILE} in such a folder, and no tokenizer of "
                    f"this name in the local cache {hub_folder(environ)}. Nothing was sent, and nothing is downloaded. "
                    f"Write the path of a {FILE}, or run `hf download {name} {FILE}` before.")


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Where the Hugging Face libraries keep downloads."""
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
