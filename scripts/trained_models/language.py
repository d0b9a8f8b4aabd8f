"""The language of the trained models: chains of arithmetic on numbers of two digits, a byte a token.

A chain keeps its operator and operand, and the result of each line begins the next line:

    37+45=72
    72+45=17
    17+45=52

Of the nine tokens of a line seven follow from earlier lines by copying. The two digits of the result need arithmetic:
`+` and `-` work on each digit alone, modulo 10 and without a carry. `*` is the product modulo 100, which is harder.
"""

from __future__ import annotations

from random import Random

LINE_TOKENS = 9
OPERATORS = "+-*"
MODULUS = 100
#: Operands of products: odd and no multiple of 5, so that a chain of products does not end in zeros.
FACTORS = (3, 7, 9, 11, 13, 17, 19, 21)


def result(left: int, operator: str, right: int) -> int:
    """The result of one line."""
    if operator == "*":
        return left * right % MODULUS
    sign = 1 if operator == "+" else -1
    tens, ones = left // 10 + sign * (right // 10), left % 10 + sign * (right % 10)
    return 10 * (tens % 10) + ones % 10


def question(left: int, operator: str, right: int) -> str:
    """A line without its result: "37+45="."""
    return f"{left:02}{operator}{right:02}="


def chain(left: int, operator: str, right: int, lines: int) -> str:
    """The text of a chain."""
    text = []
    for _ in range(lines):
        after = result(left, operator, right)
        text.append(f"{question(left, operator, right)}{after:02}\n")
        left = after
    return "".join(text)


def random_terms(rng: Random) -> tuple[int, str, int]:
    """First number, operator and operand of a chain."""
    operator = rng.choice(OPERATORS)
    right = rng.choice(FACTORS) if operator == "*" else rng.randrange(1, MODULUS)
    return rng.randrange(MODULUS), operator, right
