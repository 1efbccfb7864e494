# SPDX-License-Identifier: Apache-2.0
"""Pages as a browser lays them out: how wide tables are, what a phone shows, colours and names."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ut.evaluation.regress.samples import accuracy, measured, performance
from tests.ut.evaluation.replay.http.completions_server import CompletionsServer
from tests.ut.evaluation.replay.http.test_replay import invoke
from tests.ut.evaluation.replay.test_report import make_report, make_run, table
from vllm_ascend_evaluation.regress.judge import Tolerances, judge
from vllm_ascend_evaluation.regress.report import RegressReport, write_report
from vllm_ascend_evaluation.replay.report import write_html
from vllm_ascend_evaluation.replay.report.colours import UNLIMITED, colours_of
from vllm_ascend_evaluation.replay.variants import BUILT_IN_NAMES

# Of the widest numbers in real reports a table of so many columns is 860 pixels wide.
MOST_COLUMNS = 7


class Tables(HTMLParser):
    """Gathers headings, and (data-heading, text) of every cell, per table that has headings."""

    def __init__(self, page):
        super().__init__()
        self.found, self._into = [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Begin a table, a row or a cell."""
        if tag == "table":
            self._table = ([], [])
        if tag == "thead":
            self.found.append(self._table)
        if tag == "tr":
            self._table[1].append([])
        if tag == "th":
            self._table[0].append("")
            self._into = "th"
        if tag == "td":
            self._table[1][-1].append([dict(attrs).get("data-heading"), ""])
            self._into = "td"

    def handle_endtag(self, tag):
        """End a cell or a table."""
        if tag in ("th", "td"):
            self._into = None

    def handle_data(self, data):
        """Read a cell."""
        if self._into == "th":
            self._table[0][-1] += data
        elif self._into == "td":
            self._table[1][-1][-1][1] += data


def replay_page(folder, **changes):
    names = ("upstream-like", "retention-0", "partial", "best", "mine")
    runs = tuple(make_run(name, description=f"all of {name}", **changes) for name in names)
    write_html(make_report(*runs), folder / "report.html")
    return (folder / "report.html").read_text()


def server_page(folder):
    with CompletionsServer() as server:
        assert invoke(server, folder, "--workload", "6:64:32:2").exit_code == 0
    return (folder / "out" / "report.html").read_text()


def regress_page(folder, *, has_baseline=True):
    now = measured(performance=performance(), accuracy=accuracy())
    verdicts = judge(now, now if has_baseline else None, Tolerances())
    write_report(RegressReport("command", now, "b.json", verdicts, []), folder)
    return (folder / "regress.html").read_text()


PAGES = {"replay": replay_page, "server": server_page, "regress": regress_page}


def in_a_line(heading):
    return heading.replace("-\n", "").replace("\n", " ")


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_no_table_is_too_wide_for_a_screen_and_on_a_phone_every_number_has_its_heading(
    tmp_path, make
):
    page = make(tmp_path)
    tables = Tables(page).found
    assert tables
    for headings, rows in tables:
        assert 2 <= len(headings) <= MOST_COLUMNS
        cells = [row for row in rows if row]
        assert cells and all(len(row) == len(headings) for row in cells)
        for row in cells:
            assert row[0][0] is None  # the name, which stands above
            assert [name for name, _ in row[1:]] == [in_a_line(text) for text in headings[1:]]
    phone = page.partition("@media (max-width: ")[2]
    assert "thead { display: none; }" in phone
    assert "::before { content: attr(data-heading);" in phone


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_no_column_has_dashes_alone(tmp_path, make):
    pages = [make(tmp_path)]
    if make is regress_page:
        pages.append(make(tmp_path, has_baseline=False))
    if make is replay_page:
        pages.append(make(tmp_path, verified=False))
    for page in pages:
        for _, rows in Tables(page).found:
            for column in zip(*(row for row in rows if row), strict=True):
                assert {text for _, text in column} != {"-"}


def test_of_columns_of_dashes_the_terminal_has_none_either():
    assert "rows" not in table(make_report(make_run(verified=False)))
    assert "checked" in table(make_report(make_run(verified=False), make_run("best")))


def test_nothing_on_the_page_is_unexplained(tmp_path):
    page = replay_page(tmp_path)
    assert "<u " not in page and "<u>" not in page  # marks without a word
    digest = "0123456789abcdef"
    assert page.count(digest) == 1
    assert re.search(rf"Digest of prompts and lengths of answers: <code>{digest}</code>", page)
    assert "hits 89.71 % in multiples of 1," in re.sub(r"\s+", " ", page)


def test_pictures_have_the_names_and_colours_of_the_text(tmp_path):
    """The card, the description, the line over time and the bar by length of each variant."""
    page = replay_page(tmp_path)
    swatches = re.findall(
        r'class="swatch" style="background: (#\w+)"></span>(?:<code>)?([^<]+)', page
    )
    colours = {name: colour for colour, name in swatches}
    assert len(set(colours.values())) == len(colours) == 6
    assert sorted(swatches) == sorted(
        2 * [(c, n) for n, c in colours.items() if n != "unlimited cache"]
        + [(UNLIMITED, "unlimited cache")]
    )
    over_time, by_length, *pools = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for name, colour in colours.items():
        if name == "unlimited cache":
            continue
        for picture in (over_time, by_length):
            assert f">{name}</text>" in picture
            assert colour.lower() in picture.lower()
        assert any(f">{name}</text>" in pool for pool in pools)
    assert ", block" not in over_time + by_length
    in_pools = {c.lower() for pool in pools for c in re.findall(r"fill: (#\w+)", pool)}
    assert not in_pools & {colour.lower() for colour in colours.values()}


@given(
    st.lists(st.sampled_from([*BUILT_IN_NAMES, "mine", "other", "best@config.json"]), unique=True)
)
def test_a_built_in_variant_has_one_colour_in_every_picture(names):
    colours = colours_of(names)
    assert list(colours) == names
    for name in set(names) & (set(BUILT_IN_NAMES) - {"stock", "upstream-like"}):
        assert colours[name] == colours_of([name])[name]
    if len(names) <= 6:
        assert len(set(colours.values())) == len(names)


def test_what_there_was_is_grey_and_best_is_the_same_beside_anything():
    (grey,) = {colours_of([name])[name] for name in ("stock", "upstream-like")}
    assert colours_of(["a", "stock", "upstream-like"])["stock"] == grey
    assert colours_of(["best@x"])["best@x"] == colours_of(["a", "b", "best"])["best"]
    both = colours_of(["best@x", "best"])
    assert both["best"] == colours_of(["best"])["best"] != both["best@x"]
