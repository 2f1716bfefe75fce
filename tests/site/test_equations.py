"""Equations in docstrings' plain text become TeX, or are refused."""

import pytest
from docsite import equations
from docsite.known import Known

from strop.catalogue import catalogue


def tex(text: str, *fields: str) -> str:
    """The TeX of a statement, with spaces where a line may end."""
    found = equations.to_tex(text, frozenset(fields)).removeprefix(r"\displaystyle ")
    return found.replace(r"\allowbreak\ ", " ").replace("{,}", ",")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A_i", "A_{i}"),
        ("lam^(j - k)", r"\lambda ^{j-k}"),
        ("logp_ref_t", r"\log p_{\text{ref},t}"),
        ("R'_i", r"R_{i}^{\prime }"),
        ("a~_{i,k}", r"\tilde{a}_{i,k}"),
        ("R_(1)", "R_{(1)}"),
        ("(a - Z)+", "(a-Z)^{+}"),
        ("sum_{j in G} r_j", r"\sum _{j \in  G}r_{j}"),
        ("2 sqrt(a (1 - a))", r"2\,\sqrt{a\,(1-a)}"),
        ("beta0 1e-6", r"\beta _{0}\,10^{-6}"),
        ("1[x > 0] E[y]", r"\mathbf{1}[x>0]\,\mathbb{E}[y]"),
        ("-|d|", r"{-}{\vert}d{\vert}"),
        ("pi(. | x)", r"\pi (\cdot \mid x)"),
    ],
)
def test_names_scripts_brackets_and_signs(text: str, wanted: str) -> None:
    assert tex(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "a turn's mean of a over b",
            r"\text{a} \text{turn's} \text{mean} \text{of} a \text{over} b",
        ),
        ("mean of the sum", r"\text{mean} \text{of} \text{the} \text{sum}"),
        ("R - mean_g", r"R-\text{mean}_{g}"),
        ("mean_g x", r"\operatorname{mean}_{g}x"),
        ("the (1 - x)-quantile", r"\text{the} (1-x)\text{-quantile}"),
        ("fork_at `a_b` c", r"\texttt{fork\_at} \texttt{a\_b} c"),
        ("k1: d    k2: e", r"k_{1}{:} d\qquad  k_{2}{:} e"),
    ],
)
def test_words_and_names_of_code(text: str, wanted: str) -> None:
    assert tex(text) == wanted


def test_a_field_is_code() -> None:
    assert (tex("1 - share"), tex("1 - share", "share")) == (r"1-\text{share}", r"1-\texttt{share}")


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
    assert tex(text).count(r"\frac") == number


@pytest.mark.parametrize("text", ["(a + b", "a + b)", "_i", "x_", "a $ b", "x^2^3", "^2"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(equations.Unreadable):
        equations.to_tex(text)


def test_statements_and_lines() -> None:
    assert equations.statements("a = f(b; c); d") == ["a = f(b; c)", "d"]
    block = "    a = b\n          + c\n    if x:\n        d = min(e,\n        f)"
    assert equations.lines_of(block) == [(4, "a = b + c"), (4, "if x:"), (8, "d = min(e, f)")]


def test_an_equation_has_its_text_and_its_tex() -> None:
    grpo = catalogue.find("recipe", "grpo")
    known = Known({"grpo": grpo}, {}, {}, {}, {}, {}, {})
    html = known.equation(grpo, [(0, "a < b")])
    assert html == (
        '<div class="equation" markdown="0"><p style="--in:0" '
        r'data-tex="\displaystyle a&lt;b">a &lt; b</p></div>'
    )


def test_a_refused_equation_stands_as_it_was_written_and_is_counted() -> None:
    grpo = catalogue.find("recipe", "grpo")
    known = Known({"grpo": grpo}, {}, {}, {}, {}, {}, {})
    html = known.equation(grpo, [(0, "a < (b")])
    assert html == '<pre class="equation plain">a &lt; (b</pre>'
    assert known.said() == (
        "equations typeset: 0 of 1 recipes and 0 of 0 parts\nrecipe grpo: a ) is missing"
    )
