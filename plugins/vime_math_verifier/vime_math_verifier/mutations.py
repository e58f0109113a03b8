"""Responses whose truth is known from how they were made, class by class; the rows of an audit.

python -m vime_math_verifier.mutations 100000 --seed 1 > mutations.jsonl
vime verifier audit mutations.jsonl --reward dapo_math
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

Mutator = Callable[[random.Random, int], str]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One row of an audit file."""

    id: str
    kind: str
    response: str
    ground_truth: str
    correct: bool


def _dress(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(3)):
        text = rng.choice(_DRESSES).format(text)
    return text


def _lead(rng: random.Random) -> str:
    return rng.choice(_LEADS)


def _answer(rng: random.Random, text: str) -> str:
    return f"{_lead(rng)}{rng.choice(_MARKERS)}{text}"


def _other(rng: random.Random, value: int) -> int:
    return value + rng.choice([-10, -2, -1, 1, 2, 7, 10, 100])


_DRESSES = [
    *("**{}**", "*{}*", "`{}`", "${}$", "$${}$$", "\\({}\\)", "\\[{}\\]", "\\boxed{{{}}}", "\\text{{{}}}"),
    *("\\mathbf{{{}}}", "\\mathrm{{{}}}", "\\textbf{{{}}}", "({})", "[{}]", '"{}"', "__{}__", "\\fbox{{{}}}"),
    *("\\underline{{{}}}", "\\left({}\\right)", "\\displaystyle {}", "\\textcolor{{red}}{{{}}}", "<b>{}</b>"),
]
_LEADS = [
    *("", "We add the two numbers.\n", "So 3 + 4 = 7, and the rest follows.\n\n", "<think>\nIs it 5?\n</think>\n"),
    *("Step 1: 12 / 4 = 3.\nStep 2: 3 * 9 = 27.\n", "Let $x$ be the number of apples.\n"),
    *("I thought about 17 first, but that is wrong.\n", "x" * 400 + "\n"),
]
_MARKERS = [
    *("Answer: ", "answer: ", "ANSWER: ", "Answer:", "Answer:\n", "**Answer:** ", "**Answer**: ", "Final Answer: "),
    *("### Answer: ", "Answer : ", "\\textbf{Answer:} ", "The answer: ", "__Answer:__ ", "*Answer:* ", "Answer:\n\n"),
    "Answer\uff1a ",
]
_PROSE = [
    *(
        "\nI hope this helps!",
        "\n\nWe can check: it fits all conditions.",
        "\nDone.",
        " as required.",
        " because it fits.",
    ),
    *("\nLet me know if you have questions.", " (since 1 + 1 = 2)", "\nCheck: 12 - 5 = 7 and 7 * 3 = 21.", ". Done."),
    *(
        "\nThis took 3 steps.",
        "\n\n---\nNo further steps are needed.",
        "\nThe other 5 cases are symmetric.",
        "\n" + "y " * 400,
    ),
]
_TOKENS = ["</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<eos>", "<|im_end|>\n", "<end_of_turn>", "</s></s>"]
_UNITS = [
    *(
        " apples",
        " dollars",
        " cm",
        "cm",
        "%",
        "\\%",
        " percent",
        " degrees",
        "^\\circ",
        "\u00b0",
        " square units",
        " cm^2",
    ),
    *(
        " km/h",
        " miles per hour",
        " m\u00b2",
        "\\text{ cm}",
        "\\text{ cm}^2",
        "\\mathrm{~cm}",
        " \\text{units}",
        " students",
    ),
    *(" hours", " kg", " ways", " dollars a day", "\\,\\text{m}", " cubic meters", " USD", "~\\text{ft}"),
]


def _markdown_and_latex(rng: random.Random, value: int) -> str:
    return _answer(rng, _dress(rng, rng.choice(_DRESSES).format(value)))


def _separators(rng: random.Random, value: int) -> str:
    separator = rng.choice([",", "{,}", "\\,", "\u2009", "\u202f", ",\\!"])
    return _answer(rng, _dress(rng, f"{value:,}".replace(",", separator)))


def _unicode_minus(rng: random.Random, value: int) -> str:
    return _answer(rng, str(value).replace("-", rng.choice("\u2212\u2013\u2010\u2011\ufe63\uff0d")))


def _unicode_digits(rng: random.Random, value: int) -> str:
    zero = rng.choice([0xFF10, 0x0660, 0x06F0, 0x0966, 0x1D7CE, 0x1D7D8])
    return _answer(rng, "".join(chr(zero + int(char)) if char.isdigit() else char for char in str(value)))


def _trailing_prose(rng: random.Random, value: int) -> str:
    return _answer(rng, f"{_dress(rng, str(value))}{rng.choice(_PROSE)}")


def _special_tokens(rng: random.Random, value: int) -> str:
    return _answer(rng, f"{_dress(rng, str(value))}{rng.choice(_TOKENS)}")


def _leading_zeros(rng: random.Random, value: int) -> str:
    sign, digits = ("-", str(-value)) if value < 0 else ("", str(value))
    return _answer(rng, _dress(rng, f"{sign}{'0' * rng.randint(1, 4)}{digits}"))


def _point_zero(rng: random.Random, value: int) -> str:
    return _answer(rng, _dress(rng, f"{value}.{'0' * rng.randint(1, 3)}"))


def _units(rng: random.Random, value: int) -> str:
    return _answer(rng, rng.choice(["{}", "${}$", "{}.", "**{}**"]).format(f"{value}{rng.choice(_UNITS)}"))


def _earlier_answer(rng: random.Random, value: int) -> str:
    return f"Answer: {_other(rng, value)}\n{rng.choice(['', 'Wait, I made a mistake.', 'Again.'])}\n" + _answer(
        rng, _dress(rng, str(value))
    )


def _punctuation(rng: random.Random, value: int) -> str:
    return _answer(rng, _dress(rng, str(value)) + rng.choice([".", ",", ";", " .", ".\n", "  ", ".**"]))


def _box_alone(rng: random.Random, value: int) -> str:
    return _lead(rng) + rng.choice(["The result is ", "Thus $", "So ", "Therefore, x = "]) + f"\\boxed{{{value}}}."


def _named(rng: random.Random, value: int) -> str:
    return _answer(rng, rng.choice(["x = {}", "$x={}$", "m + n = {}", "The total is {}", "$f(3) = {}$"]).format(value))


def _off_by_one(rng: random.Random, value: int) -> str:
    return _answer(rng, _dress(rng, str(value + rng.choice([-1, 1]))))


def _sign(rng: random.Random, value: int) -> str:
    return _answer(rng, _dress(rng, str(-value if value else 1)))


def _two_numbers(rng: random.Random, value: int) -> str:
    pair = [str(value), str(_other(rng, value))]
    rng.shuffle(pair)
    joint = rng.choice(
        [" or ", " and ", ", ", " ", "; ", "/", " to ", "\n", "\nor ", " (or ", "$ or $", "} and \\boxed{"]
    )
    return _answer(rng, joint.join(pair) if "boxed" not in joint else f"\\boxed{{{joint.join(pair)}}}")


def _denial(rng: random.Random, value: int) -> str:
    return rng.choice(
        [
            *("Answer: not {}", "Answer: {} is not correct", "Answer: {} is wrong", "Answer: it is not {}"),
            *("Answer: {}\nThat is wrong.", "Answer: {}\nWait, that is incorrect.", "Not the final answer: {}"),
            *("Wrong answer: {}", "Answer: {} (wrong)", "The result is not \\boxed{{{}}}", "\\boxed{{{}}} is wrong."),
            *("Answer: x != {}", "Answer: x \\neq {}", "Answer: anything but {}", "Answer: {}, but that is impossible"),
            *("Answer: {}\nNo, this is not the answer.", "Answer: {} cannot be right", "Answer: never {}"),
            "Answer: {}\nI made a mistake above.",
        ]
    ).format(value)


def _bounds_and_hedges(rng: random.Random, value: int) -> str:
    return _answer(
        rng,
        rng.choice(
            [
                *("at least {}", "at most {}", "about {}", "approximately {}", "> {}", "< {}", "\\geq {}", "\\le {}"),
                *(
                    "\u2265 {}",
                    "~{}",
                    "\\approx {}",
                    "{} or more",
                    "{} or so",
                    "{} at most",
                    "{}?",
                    "{} (approximately)",
                ),
                *(
                    "probably {}",
                    "maybe {}",
                    "{} maybe",
                    "{}+",
                    "{}, I think",
                    "I guess {}",
                    "{} (my guess)",
                    "up to {}",
                ),
                *("less than {}", "more than {}", "nearly {}", "x > {}", "x \\leq {}", "{} give or take 2", "\u00b1{}"),
                *("{} if n is even", "{} (not sure)", "I think it is {}", "{}, probably", "between 1 and {}", "{}-ish"),
            ]
        ).format(value),
    )


def _different_last(rng: random.Random, value: int) -> str:
    other = _other(rng, value)
    return rng.choice(
        [
            *("Answer: {0}\nAnswer: {1}", "Answer: {0}\n\nThe correct answer is {1}.", "Answer: {0}\n\\boxed{{{1}}}"),
            *("\\boxed{{{0}}}\nAnswer: {1}", "\\boxed{{{0}}}. No: \\boxed{{{1}}}", "Answer: {0}. Wait.\nAnswer: {1}"),
            *("Answer: {0}\nThe final answer should be {1}.", "**Answer: {0}**\n\n**Answer: {1}**"),
        ]
    ).format(value, other)


def _digits_split(rng: random.Random, value: int) -> str:
    digits = str(value) if abs(value) > 9 else f"{value}{(value + 1) % 10}"
    cut = rng.randrange(2 if digits[0] == "-" else 1, len(digits))
    return _answer(rng, rng.choice([" ", "  ", "\n", "_", "}{", "$ $"]).join([digits[:cut], digits[cut:]]))


def _digits_dropped(rng: random.Random, value: int) -> str:
    digits = str(abs(value))
    cut = rng.randrange(len(digits))
    kept = digits[:cut] + digits[cut + 1 :]
    return _answer(rng, kept if kept and int(kept) != value else f"{digits}7")


def _false_equation(rng: random.Random, value: int) -> str:
    other = _other(rng, value)
    return _answer(
        rng, rng.choice(["{1} = {0}", "{0} = {1}", "{0} + 1 = {0}", "x = {1} = {0}", "2x = {0}"]).format(value, other)
    )


def _thinking_only(rng: random.Random, value: int) -> str:
    return rng.choice(
        [
            *("<think>\nAnswer: {}\n</think>\nI do not know.", "<think>\nAnswer: {}", "<think>\\boxed{{{}}}</think>"),
            *(
                "Answer: {}\n</think>\n\nI cannot tell.",
                "<thinking>Answer: {}</thinking>\nDone.",
                "\\boxed{{{}}}</think>",
            ),
        ]
    ).format(value)


KEPT: dict[str, Mutator] = {
    "dress": _markdown_and_latex,
    "separators": _separators,
    "unicode minus": _unicode_minus,
    "unicode digits": _unicode_digits,
    "trailing prose": _trailing_prose,
    "special tokens": _special_tokens,
    "leading zeros": _leading_zeros,
    "point zero": _point_zero,
    "units": _units,
    "wrong earlier answer": _earlier_answer,
    "punctuation": _punctuation,
    "box alone": _box_alone,
    "named": _named,
}
"""Classes that keep the value."""

CHANGED: dict[str, Mutator] = {
    "off by one": _off_by_one,
    "sign": _sign,
    "two numbers": _two_numbers,
    "denial": _denial,
    "bounds and hedges": _bounds_and_hedges,
    "different last answer": _different_last,
    "digits split": _digits_split,
    "digits dropped": _digits_dropped,
    "false equation": _false_equation,
    "only in the thinking": _thinking_only,
}
"""Classes after which the response no longer gives the value."""


def mutations(count: int, seed: int = 0) -> Iterator[Mutation]:
    """`count` mutations, the classes in turn; the same for the same seed."""
    rng = random.Random(seed)
    classes = [(kind, mutate, True) for kind, mutate in KEPT.items()]
    classes += [(kind, mutate, False) for kind, mutate in CHANGED.items()]
    for index in range(count):
        kind, mutate, correct = classes[index % len(classes)]
        value = _value(rng)
        if kind == "unicode minus":
            value = -abs(value) or -1
        yield Mutation(f"{seed}-{index}", kind, mutate(rng, value), str(value), correct)


def _value(rng: random.Random) -> int:
    return rng.choice(
        [rng.randrange(10), rng.randrange(1000), rng.randrange(10**6), -rng.randrange(1, 1000), rng.randrange(10**15)]
    )


def main() -> None:
    """Write rows to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for mutation in mutations(options.count, options.seed):
        sys.stdout.write(json.dumps(asdict(mutation)) + "\n")


if __name__ == "__main__":
    main()
