"""Words: what two texts have in common, and what a model's sentence may never contain.

Conversations are quoted material. Whatever they say, a sentence that reaches a page is one line of plain
prose: no headings, fences, links, templates, footnotes or addresses, and no talk of instructions. The
rules are the same for every model, so a small one cannot break a page and a hostile transcript cannot
steer one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mlxplatform.memory.wiki.steering import steers

#: Longest sentence, title and label kept, in characters. A page sentence longer than this is run-away text.
SENTENCE_LIMIT = 400
TITLE_LIMIT = 80
LABEL_LIMIT = 100
#: A draft sentence stays when at least this share of its content words occurs in the notes it cites.
GROUNDED = 0.5
#: Two sentences that share this much of their content words say the same thing.
SAME = 0.8
#: A new sentence that is this close to a forgotten fact is that fact coming back.
FORGOTTEN = 0.6

_STOP_WORDS = """a about above after again all also am an and any are as at be because been before being between both but by can
    could did do does doing down during each few for from further had has have having he her here hers him his how i if in
    into is it its just me more most my no nor not now of off on once only or other our out over own same she should so
    some such than that the their them then there these they this those through to too under until up very was we were
    what when where which while who whom why will with would you your user users assistant said says asked"""
_STOP = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[぀-ヿ㐀-鿿가-힯]")
_SUFFIXES = ("ingly", "edly", "ings", "ing", "ies", "ied", "ers", "est", "ed", "es", "er", "ly", "s")

#: The person and the model, as they speak in a conversation, and as a page speaks of the person.
_SPEAKERS: tuple[tuple[str, str], ...] = (
    (r"\b(?:i|you|we)\s+(?:am|are)\b|\b(?:i['’]m|you['’]re|we['’]re)\b", "the user is"),
    (r"\b(?:i|you|we)\s+(?:was|were)\b", "the user was"),
    (r"\b(?:i|you|we)\s+have\b|\b(?:i|you|we)['’]ve\b", "the user has"),
    (r"\b(?:i|you|we)\s+(?:don['’]t|do not)\b", "the user does not"),
    (
        r"\b(?:i|you|we)(?=\s+(?:\w+ed|can|could|should|will|would|must|may|might|had|did|didn['’]t|bought|chose|got|went|made|took"
        r"|said|found|built|put|sold|left|kept|began|wrote|ran|saw|came|gave|paid|sent|felt|lost|met|told|thought|grew|set)\b)",
        "the user",
    ),
    (r"\b(?:my|your|our)\b", "the user's"),
)
_THIRD_PERSON = tuple((re.compile(pattern, re.IGNORECASE), said) for pattern, said in _SPEAKERS)
#: Case counts: US is a country. A numeral after a name ("World War I") is none of them, see :func:`third_person`.
_ADDRESSED = re.compile(r"(?<![\w.-])(?:I|[Mm]e|[Mm]yself|[Yy]ou|[Yy]ours|[Yy]ourself|[Ww]e|us|Us|[Oo]urs)(?![\w.-])")
_AFTER_A_NAME = re.compile(r"[A-Z]\w* $")
#: Words of a heading; more make it a sentence.
TITLE_WORDS = 6
#: Letters of its longest word; beyond that it is no word.
LONGEST_WORD = 30
_HARMLESS = str.maketrans({"[": "(", "]": ")", "{": "(", "}": ")", "`": "'", "|": "/", "<": None, ">": None, "\\": None})
_PATH = re.compile(r"\.\./|~/|(?:^|\s)/\w+/|\b[A-Za-z]:/")
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))})


def stem_word(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def words(text: str) -> list[str]:
    """Content words in order: lower case, stop words dropped, endings cut; scripts without spaces as pairs."""
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _CJK.search(word):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        elif word not in _STOP:
            found.append(stem_word(word))
    return found


def is_filler(word: str) -> bool:
    """Whether a word says nothing by itself."""
    return word.casefold() in _STOP


def content(text: str) -> frozenset[str]:
    return frozenset(words(text))


def grounding(sentence: str, notes: str) -> float:
    """Share of the sentence's content words that the notes contain; 0 for a sentence without any."""
    said = content(sentence)
    return len(said & content(notes)) / len(said) if said else 0.0


def numbers(text: str) -> frozenset[str]:
    """Numbers written in figures, a separator of thousands or decimals as it stands."""
    return frozenset(re.findall(r"\d+(?:[.,:]\d+)*", text))


def likeness(one: str, other: str) -> float:
    """Jaccard index of the content words."""
    first, second = content(one), content(other)
    return len(first & second) / len(first | second) if first or second else 1.0


def containment(fact: str, text: str) -> float:
    """Share of the fact's content words that the text repeats."""
    known = content(fact)
    return len(known & content(text)) / len(known) if known else 0.0


def comes_back(sentence: str, forgotten: Iterable[str]) -> bool:
    """Whether a sentence restates something a person asked to forget."""
    return any(containment(fact, sentence) >= FORGOTTEN for fact in forgotten)


def plain(text: str, limit: int) -> str:
    """One line of prose with everything that Markdown or a note editor would act on taken out."""
    text = unicodedata.normalize("NFC", text)
    text = "".join(" " if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp", "Cs"} else char for char in text)
    text = re.sub(r"!?\[\[[^\[\]|]*\|([^\[\]]*)\]\]", r"\1", text)
    text = re.sub(r"!?\[\[([^\[\]]*)\]\]", r"\1", text)
    text = re.sub(r"\[\^[^\]]*\]:?", "", text)
    text = re.sub(r"!?\[([^\[\]]*)\]\((?:[^()]|\([^()]*\))*\)", r"\1", text)
    text = re.sub(r"<[^<>]*>|%%|~~~+", "", text)
    text = re.sub(r"(\*\*|__)(.+?)\1", r"\2", text)
    text = re.sub(r"\bconv:[0-9a-f]{8}\b", "", text)
    text = re.sub(r"\b(?:[a-z][a-z0-9+.-]*://|(?:javascript|data|file|obsidian|mailto):)", "", text, flags=re.IGNORECASE)
    # Whatever is left of markup is made harmless character by character: no removal above can build a new one.
    text = text.replace("://", ":").translate(_HARMLESS)
    text = re.sub(r"^(?:[\s#*+=_~-]|\d+[.)]\s)+", "", text)
    text = " ".join(text.split())
    if len(text) > limit:
        text = text[:limit].rsplit(" ", 1)[0].rstrip(" ,;:-") + "…"
    return text


def third_person(text: str) -> str:
    """What was said to or by the person, as a statement about the person; '' when somebody is addressed all the same."""
    for pattern, said in _THIRD_PERSON:
        text = _spoken_of(text, pattern, said)
    addressed = any(not _is_numeral(text, found) for found in _ADDRESSED.finditer(text))
    return "" if addressed else text[:1].upper() + text[1:]


def _spoken_of(text: str, pattern: re.Pattern[str], said: str) -> str:
    return pattern.sub(lambda found: found[0] if _is_numeral(text, found) else said, text)


def _is_numeral(text: str, found: re.Match[str]) -> bool:
    return found[0].startswith("I") and bool(_AFTER_A_NAME.search(text, 0, found.start()))


def heading(text: str) -> str:
    """A section's title, or '' for what is a sentence, breaks off, or says nothing."""
    cleaned = title(text)
    parts = cleaned.split()
    runs_on = not 1 <= len(parts) <= TITLE_WORDS or ". " in cleaned or parts[-1].casefold() in _STOP
    if runs_on or not content(cleaned) or max(map(len, parts)) > LONGEST_WORD:
        return ""
    return cleaned[:1].upper() + cleaned[1:]


def sentence(text: str) -> str:
    """A model's sentence made fit for a page, or '' when nothing of it is."""
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    cleaned = third_person(plain(first_line, SENTENCE_LIMIT))
    if len(content(cleaned)) < 2 or steers(text) or steers(cleaned):
        return ""
    return cleaned if cleaned[-1] in ".!?…。！？" else cleaned + "."


def title(text: str) -> str:
    """A model's or a person's title made fit for a heading and a file name, or ''."""
    cleaned = plain(text, TITLE_LIMIT).rstrip("…")
    if steers(text):
        return ""
    cleaned = "".join(char for char in cleaned if char.isalnum() or char in " -'&+.,()" or unicodedata.category(char)[0] == "M")
    cleaned = " ".join(cleaned.split()).strip(" .,-'")
    return cleaned if any(char.isalnum() for char in cleaned) and cleaned.casefold() not in _RESERVED else ""


def label(text: str) -> str:
    """A short description for a chunk or a footnote; injected orders become a neutral word."""
    cleaned = plain(text, LABEL_LIMIT)
    return "conversation" if not cleaned or steers(text) or steers(cleaned) or _PATH.search(cleaned) else cleaned


def stem_of(heading: str) -> str:
    """File stem of a title: spaces become underscores."""
    return title(heading).replace(" ", "_")
