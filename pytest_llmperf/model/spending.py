"""A limit on what requests to a paid service may cost, in tokens or in money."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.errors import SpecError, refuse

PER_PRICE = 1_000_000  # tokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of prompt tokens and generated tokens."""

    prompt: int = 0
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prompt + other.prompt, self.output + other.output)


@dataclass(frozen=True, slots=True)
class SpendingLimit:
    """Built by `spending_limit`.

    Args:
        most: largest number of tokens, or largest amount of money.
        input_price, output_price: per million tokens, in the currency of `most`; None counts tokens.
    """

    most: float
    input_price: float | None = None
    output_price: float | None = None

    def cost(self, tokens: Tokens) -> float:
        """What these tokens cost: a number of tokens, or money."""
        if self.input_price is None or self.output_price is None:
            return tokens.prompt + tokens.output
        return (tokens.prompt * self.input_price + tokens.output * self.output_price) / PER_PRICE

    def shown(self, cost: float) -> str:
        """A cost with its unit."""
        return f"{cost:,.0f} tokens" if self.input_price is None else f"{cost:.2f}"

    def __repr__(self) -> str:
        if self.input_price is None:
            return f"spending_limit(tokens={self.most:g})"
        return (f"spending_limit(money={self.most:g}, input_price={self.input_price:g}, "
                f"output_price={self.output_price:g})")


def spending_limit(*, tokens: int | None = None, money: float | None = None, input_price: float | None = None,
                   output_price: float | None = None) -> SpendingLimit:
    """The most that a pytest session may spend at an endpoint: `endpoint(…, limit=spending_limit(tokens=2_000_000))`.

    Before a measurement and before each of its runs the session adds what its requests can cost at most to what was
    spent. If the sum is above the limit, the session sends nothing and the test ends with a message.

    Args:
        tokens: largest number of prompt tokens and generated tokens together.
        money: largest cost, in the currency of the prices.
        input_price, output_price: price of a million prompt tokens and of a million generated tokens.

    Raises:
        SpecError: both or none of `tokens` and `money` are given, a price is missing, `tokens` is below 1, or an
            amount is negative.
    """
    call = "spending_limit"
    if (tokens is None) == (money is None):
        raise SpecError(f"{call}: write tokens=2_000_000, or money=5 with input_price= and output_price= per million "
                        "tokens.")
    prices = (input_price, output_price)
    if tokens is not None:
        refuse(
            (prices != (None, None), f"{call}: tokens have no prices. Write money= instead of tokens=."),
            (type(tokens) is not int or tokens < 1,
             f"{call}: tokens must be a whole number of at least 1, got {tokens!r}."),
        )
        return SpendingLimit(tokens)
    for name, value in (("money", money), ("input_price", input_price), ("output_price", output_price)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise SpecError(f"{call}: {name} must be a number of at least 0, got {value!r}. Prices are per million "
                            "tokens.")
    return SpendingLimit(float(money or 0), input_price, output_price)
