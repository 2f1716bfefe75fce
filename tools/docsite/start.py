"""The first page: what strop is, three commands, the families of methods, the README's steps."""

import re
from pathlib import Path

from docsite import drawing
from docsite.known import Known
from strop.method.algorithm import Algorithm

README = Path(__file__).parents[2] / "README.md"
# Sections of the README that follow the pictures.
SECTIONS = ("From Python", "What `strop train` does", "The shipped models are weak on purpose")
COMMANDS = """```sh
pip install -c constraints.txt -e .      # Python 3.11 or newer; a laptop's CPU is enough
strop train gspo                         # the shipped model, some minutes, a live panel
strop compare grpo gspo dapo --seeds 5   # the same prompts and seeds: what differs, what does not
```
"""
PICTURES = (
    ("inspect_tree.png", "INSPECT.md", "`strop inspect`: where every token's weight comes from"),
    ("compare.png", "COMPARE.md", "`strop compare`: eight methods, differences with intervals"),
    ("audit.png", "AUDIT.md", "`strop audit`: bias and noise of each method, by enumeration"),
)


def page(known: Known) -> str:
    """The page in Markdown."""
    text = README.read_text(encoding="utf-8")
    about = text.split("\n\n")[1].replace("\n", " ")
    lead, _, rest = about.removesuffix(" It lets you").partition(". ")
    return "\n".join(
        [
            "---\nhide:\n  - navigation\n  - toc\n---\n",
            '<div class="hero" markdown="1">\n\n<div markdown="1">\n\n# strop\n',
            f"{lead}.\n{{ .claim }}\n\n{rest}\n",
            "[Train on your own task](docs/notebooks/train_on_your_own_task.md){ .button .first } "
            "[The map of methods](map.md){ .button } [Guide](docs/README.md){ .button }\n",
            COMMANDS,
            f"\n</div>\n\n{_example(known)}\n\n</div>\n",
            f"## {len(known.recipes)} methods from {len(known.parts)} parts\n\n"
            "A method is a short composition of parts. Families, by what their methods change:\n",
            _cards(known),
            "## Look inside\n",
            _pictures(),
            *(_section(text, head) for head in SECTIONS),
            "[All pages](docs/README.md), [methods by what they change](docs/METHODS.md), "
            "[how to add a part or a method](docs/EXTENDING.md).\n",
        ]
    )


def _example(known: Known) -> str:
    """A method's picture, beside the first words."""
    parent = known.composed["grpo"]
    assert isinstance(parent, Algorithm)
    ((_, method),) = drawing.phases(known.composed["gspo"])
    found = drawing.placed(method, [parent])
    return (
        f'<figure class="example" markdown="0">{drawing.picture(found, known.parts, "parts/")}'
        '<figcaption><a href="recipes/gspo.html"><code>gspo</code></a> is <code>grpo</code> with '
        "another ratio, another clip and four updates a step</figcaption></figure>"
    )


def _cards(known: Known) -> str:
    cards = []
    for family, members in known.families.items():
        shown = ", ".join(f"[{e.name}](recipes/{e.name}.md)" for e in members[:4])
        more = f", [and {len(members) - 4} more](families/{family.name}/index.md)"
        cards.append(
            '<div class="card" markdown="1">\n\n'
            f"**[{family.title}](families/{family.name}/index.md)**\n\n"
            f"{family.sentence}\n\n{shown}{more if len(members) > 4 else ''}\n{{ .few }}\n\n</div>"
        )
    return '<div class="cards" markdown="1">\n\n' + "\n\n".join(cards) + "\n\n</div>\n"


def _pictures() -> str:
    figures = [
        '<figure markdown="1">\n\n'
        f"[![{words.replace('`', '')}](docs/pictures/{name})](docs/{where})\n\n"
        f'<figcaption markdown="span">{words}</figcaption>\n\n</figure>'
        for name, where, words in PICTURES
    ]
    return '<div class="pictures" markdown="1">\n\n' + "\n\n".join(figures) + "\n\n</div>\n"


def _section(readme: str, head: str) -> str:
    found = re.search(rf"^## {re.escape(head)}\n.*?(?=^## )", readme, re.S | re.M)
    if found is None:
        raise ValueError(f"README.md has no section {head!r}")
    return found[0]
