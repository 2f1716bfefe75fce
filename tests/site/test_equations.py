"""Equations in docstrings' plain text become mathematics, or are refused."""

import re
from xml.etree import ElementTree

import pytest
from docsite import typeset
from docsite.equations import Fraction, Unreadable, read, walk
from docsite.known import Known

from strop import catalogue


def math(text: str, *fields: str) -> str:
    html = typeset.line(text, frozenset(fields))
    return re.sub(r' (displaystyle|form|stretchy|lspace|rspace|width)="[^"]*"', "", html)


def fractions(text: str) -> int:
    return sum(isinstance(node, Fraction) for node in walk(read(text)))


def test_letters_greek_scripts_and_fields() -> None:
    assert math("A_i") == "<math><msub><mi>A</mi><mi>i</mi></msub></math>"
    assert math("lam^(j - k)").startswith("<math><msup><mi>λ</mi><mrow><mi>j</mi><mo>−</mo>")
    assert "<msub><mi>p</mi><mrow><mi>ref</mi><mo>,</mo><mi>t</mi></mrow></msub>" in math(
        "logp_ref_t"
    )
    assert math("1 - clip_low", "clip_low").endswith(
        '<mo>−</mo><mtext class="field">clip_low</mtext></math>'
    )
    assert "<msubsup><mi>R</mi><mi>i</mi><mo>′</mo></msubsup>" in math("R'_i")
    assert "<munder><mo" in math("sum_{j in group} r_j")
    assert "<mn>10</mn><mrow><mo>−</mo><mn>6</mn></mrow>" in math("1e-6")


def test_every_script_and_fraction_has_what_it_is_of() -> None:
    parts = {"msub": 2, "msup": 2, "mfrac": 2, "munder": 2, "mover": 2, "msubsup": 3}
    texts = [e.line("Equation") for e in catalogue.recipes()]
    texts += [line for e in catalogue.parts() for _, line in typeset.lines_of(indented(e.doc))]
    for text in texts:
        html = typeset.line(text).replace("<wbr>", "<wbr/>")
        for each in ElementTree.fromstring(f"<p>{html}</p>").iter():
            assert len(each) == parts.get(each.tag, len(each)), text
    assert math("y_ij") == ("<math><msub><mi>y</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub></math>")


def indented(doc: str) -> str:
    return "\n".join(line for line in doc.splitlines() if line.startswith("    "))


def test_words_stay_words_and_what_is_reckoned_with_does_not() -> None:
    html = math("a turn's mean of a over the group, else 0")
    assert math("with a clip of n") == "with a clip of <math><mi>n</mi></math>"
    assert math("the (1 - x)-quantile").endswith("<mo>)</mo></math>-quantile")
    assert math("fork_at") == '<math><mtext class="field">fork_at</mtext></math>'
    assert "</math>\u2003 " in math("k1: d    k2: e")
    assert html.startswith("a turn’s mean of <math><mi>a</mi></math> over the group, else <math>")
    assert math("loss = -x").startswith("<math><mi>loss</mi></math><wbr><math><mo>=</mo>")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("(R_i - mean_g) / (std_g + eps)", 1),
        ("-1/N sum_t x_t", 1),
        ("1 / (2 N), k", 1),
        ("a / b / c", 0),  # of what a reader may take for another: the slash as it was written
        ("a * B / max(n, 1) / f", 0),
        ("2 a / b", 0),
        ("a / b c", 0),
        ("sum_t x_t / y", 0),
        ("ln p / ln V", 0),
        ("(a - b) / c factor", 0),
        ("(a - b) / c over the step", 1),
    ],
)
def test_a_slash_becomes_a_fraction_only_beyond_doubt(text: str, number: int) -> None:
    assert fractions(text) == number


@pytest.mark.parametrize(
    "text", ["(a + b", "a + b)", "x = ", "_i", "x_", "a $ b", "x^2^3", "2 *", "/ 3"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        typeset.line(text)


def test_statements_and_lines() -> None:
    assert typeset.statements("a = f(b; c); d") == ["a = f(b; c)", "d"]
    block = "    a = b\n          + c\n    if x:\n        d = min(e,\n        f)"
    assert typeset.lines_of(block) == [(4, "a = b + c"), (4, "if x:"), (8, "d = min(e, f)")]


def test_a_refused_equation_stands_as_it_was_written_and_is_counted() -> None:
    grpo = catalogue.find("recipe", "grpo")
    known = Known({"grpo": grpo}, {}, {}, {}, {}, {}, {})
    html = known.equation(grpo, [(0, "a < (b")])
    assert html == '<pre class="equation plain">a &lt; (b</pre>'
    assert known.said() == (
        "equations typeset: 0 of 1 recipes and 0 of 0 parts\nrecipe grpo: a ) is missing"
    )
