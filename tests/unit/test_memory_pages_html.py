"""Pages as HTML: nothing a page holds becomes markup that was not made by the renderer."""

import re

from hypothesis import given
from hypothesis import strategies as st

from mlxplatform.memory.wiki.html import render

PIECES = st.lists(
    st.sampled_from(
        [
            "<script>",
            "<img src=x onerror=alert(1)>",
            "[[A]]",
            "[[A|<b>]]",
            "[x](javascript:alert(1))",
            "![i](http://e/x.png)",
            "[^1]",
            '[^"><b>]',
            "`[[A]]`",
            "\n```\n",
            "\n\n",
            "# t",
            "\n[^1]: <i>",
            "text ",
            "\ue0000\ue001",
            "<",
            "&",
            '"',
            "[ok](https://example.org)",
        ]
    )
).map("".join)
ALLOWED = {
    "a",
    "p",
    "sup",
    "span",
    "code",
    "pre",
    "em",
    "strong",
    "h1",
    "h2",
    "h3",
    "ul",
    "li",
    "ol",
    "br",
    "hr",
    "blockquote",
    "table",
}


@given(PIECES)
def test_only_known_tags_come_out(text):
    done = render(text, lambda stem: f"/w/{stem}")
    assert set(re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)", done)) <= ALLOWED
    assert not re.search(r"<[^>]*\son\w+=|href=\"javascript:", done)


def test_links_footnotes_and_code():
    done = render(
        "See [[Lelit_Anna|Anna]] and [[Gone]].[^1] `[[Lelit_Anna]]`\n\n[^1]: here\n",
        lambda stem: "/p" if stem == "Lelit_Anna" else None,
    )
    assert '<a href="/p">Anna</a>' in done and 'title="no such page">Gone</span>' in done
    assert '<a href="#note-1">1</a>' in done and 'id="note-1"' in done
    assert "<code>[[Lelit_Anna]]</code>" in done


def test_stand_ins_written_as_references_stand_for_nothing() -> None:
    assert render("a &#xe000;99&#xe001; b", lambda stem: None) == "<p>a  b</p>\n"


def test_no_markup_of_ours_ends_up_inside_a_tag() -> None:
    shown = render('[a](http://e.test "[[onclick=x]]")', lambda stem: f"/pages/{stem}")
    assert shown == '<p><a href="http://e.test" title="">a</a></p>\n'
