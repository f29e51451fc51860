"""Model cards: what they say, that values from others cannot change their form, and that a browser shows them."""

import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("cryptography")
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.models.card import HTML, MARKDOWN, card, markdown, page, write_cards
from peerbayes.peer.models.history import History, Version

HOSTILE = (
    "<script>document.title='stolen'</script>",
    "<img src=x onerror=alert(1)>",
    "a | b",
    "`x` **bold** _it_ ~~no~~",
    "[here](javascript:alert(1)) ![i](https://evil.example/p.png)",
    "https://evil.example www.evil.example me@evil.example",
    "1. first",
    "# head",
    "> quote",
    "--- \n\n| a |\n|---|",
    "&lt;b&gt; &#x41;",
    "\u202egnirts\u200b\x1b[31m",
    "</pre></main><h1>other</h1>",
    "```\n# out of the fence",
    'a"b\'c" style="x',
)


def version(*names, terms="", **more):
    """A version in which others named their classes, columns, categories and codes."""
    columns = [
        {"name": name, "present": 90.0, "mean": 1.0, "sd": 2.0, "low": -1.0, "high": 3.0, "logarithms": False,
         "missing": 0.1, "most_frequent": None}
        for name in names
    ] + [
        {"name": "codes", "present": 100.0, "mean": None, "sd": None, "low": None, "high": None, "logarithms": False,
         "missing": 0.0, "categories": len(names), "most_frequent": [[name, 5.0] for name in names]}
    ]  # fmt: skip
    figures = {"rows": 50, "error": 0.1, "log_loss": 0.3, "auc": 0.9, "brier": 0.2, "calibration": 0.05}
    sites = {
        "sites": [
            {"name": "north", "shares": "named", **figures},
            {"name": "south", "shares": "named", **figures, "error": 0.2},
            *({"name": name, "shares": "anonymous"} for name in ("east", "west", "centre")),
        ],
        "anonymous": {"sites": 3, **figures, "auc": None, "calibration": None},
        "all": {**figures, "auc_low": 0.89, "auc_high": 0.91},
        "notes": list(names),
    }
    data = {
        "sites": 5,
        "rows": 100.0,
        "noise": 0.0,
        "classes": [[name, 10.0] for name in names],
        "columns": columns,
    }
    facts = {
        "run_number": 2, "verdict": {"good": True, "sentences": list(names)}, "approved": names,
        "figures": {"data": data, "sites": sites}, "privacy": {"epsilon": 2.0, "delta": 1e-6, "spent": 1.9},
        "software": {"peerbayes": "1.0"},
    }  # fmt: skip
    plain = terms or Terms("hospitals", "y").to_toml()
    return Version(3, 1.8e9, "hospitals", "a" * 64, 40, "b" * 64, "c" * 64, plain, **(facts | more))


def shown(text):
    """A value as a reader should see it: without characters that hide or turn what follows, on one line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


class Texts(HTMLParser):
    """The elements of a page, its attributes, and the text of each cell and item."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.texts, self._open = set(), set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("td", "th", "li", "p", "h1", "h2"):
            self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    @property
    def shown(self):
        return {" ".join(text.split()) for text in self.texts}


def test_a_card_says_what_is_recorded():
    text = markdown(card(version("age", "weight")))
    for words in ("version 3 of hospitals", "number 2", "epsilon 2", "1.9 of it", "north", "20.00% at south",
                  "3 anonymous sites together", "0.890000 and 0.910000"):  # fmt: skip
        assert words in text, words
    assert "naive-bayes, learned by strategy auto" in text


def test_a_card_says_who_approved_when_and_whether_a_person_read_the_terms():
    approvals = [
        {"name": "north", "at": 1.8e9, "by": "owner"},
        {"name": "south", "at": 1.8e9 + 86400.0, "by": "standing consent"},
        *({"name": name, "at": 1.8e9, "by": name} for name in HOSTILE),
    ]
    made = version("age", approvals=tuple(approvals))
    text = markdown(card(made))
    assert "| north | 2027-01-15 08:00 UTC | owner |" in text
    assert "| south | 2027-01-16 08:00 UTC | standing consent |" in text
    assert "no person read these terms" in text
    found = Texts(page(card(made)))
    for name in HOSTILE:
        assert shown(name) in found.shown, name


def test_a_card_says_what_all_runs_over_the_rows_have_spent():
    on_rows = {"epsilon": 3.25, "delta": 1e-5, "releases": 42}
    text = markdown(card(version("age", on_rows=on_rows)))
    assert "in others of its owner, had spent epsilon 3.25 (delta 1e-05, 42 releases)" in text
    assert "had spent" not in markdown(card(version("age")))


def test_a_card_claims_no_test_at_a_site_without_held_out_rows():
    made = version("age")
    assert "Each site tested its own final model" in markdown(card(made))
    sites = made.figures["sites"]["sites"]
    sites[1] = {"name": "south", "shares": "no rows"}
    text = markdown(card(made))
    assert "Each site but south tested its own final model" in text and "This site had no" not in text
    made.figures["held_out"] = 0
    assert "This site had no held-out rows" in markdown(card(made))
    sites[:] = [{"name": name, "shares": "no rows"} for name in ("north", "south")]
    text = markdown(card(made))
    assert "No site had held-out rows" in text and "tested its own final model" not in text
    made.figures["held_out"] = 7
    assert "This site had no" not in markdown(card(made))


def test_a_card_of_terms_that_cannot_be_read_claims_no_default():
    assert "not readable, learned by strategy not readable" in markdown(card(version("a", terms="= no TOML")))


def test_a_card_of_two_sites_says_that_each_knows_the_other():
    made = version("a")
    made.figures["data"]["sites"] = 2
    text = markdown(card(made))
    assert "each knows the other" in text and "nobody was told" not in text


def test_hostile_names_are_text_in_html_and_nothing_else():
    found = Texts(page(card(version(*HOSTILE, terms='# """\nlabel = "</pre><script>1</script>"'))))
    assert not found.elements & {"script", "img", "a", "svg", "iframe", "link", "b"}
    assert found.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class"}
    for name in HOSTILE:
        assert shown(name) in found.shown, name


def test_hostile_names_are_text_in_markdown_and_nothing_else():
    markdown_it = pytest.importorskip("markdown_it")
    source = markdown(card(version(*HOSTILE, terms="x = '```'\n```\n# out\n")))
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found = Texts(reader.render(source))
    allowed = {"h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    assert found.elements <= allowed
    for name in HOSTILE:
        assert shown(name) in found.shown, name
    # GitHub makes links of plain addresses as well, where nothing stands between their parts.
    assert not re.search(r"[a-z]://|www\.|[a-z]@", source)
    assert source.count("\n## ") == 9


@pytest.mark.long
def test_a_browser_shows_a_card_and_runs_nothing_of_it(tmp_path, open_page):
    (tmp_path / "models" / "3").mkdir(parents=True)
    made = version(*HOSTILE)
    write_cards(History(tmp_path), made)
    assert (tmp_path / "models" / "3" / MARKDOWN).exists()
    opened = open_page((tmp_path / "models" / "3" / HTML).as_uri())
    assert opened.title() == "Model card: version 3 of hospitals"
    assert opened.locator("h2").all_inner_texts()[:4] == [
        "Summary",
        "What it predicts",
        "Data",
        "Errors by site",
    ]
    for name in HOSTILE:
        assert opened.get_by_text(shown(name), exact=True).count() >= 1, name
    assert opened.locator("script, img, a").count() == 0
    narrow = open_page((tmp_path / "models" / "3" / HTML).as_uri(), viewport={"width": 360, "height": 740})
    assert narrow.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
