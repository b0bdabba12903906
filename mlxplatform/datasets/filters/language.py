"""A small guess of a text's language: by script, then by common little words. "und" when it cannot tell.

Not a classifier: it knows the languages below and prefers silence to a wrong answer on short texts.
"""

from __future__ import annotations

import re
from collections import Counter

_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
)
#: Share of letters a script needs to decide.
_SHARE = 0.3
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_LITTLE_WORDS = {
    "en": "the and of to in is that it for you with are this on be as at have not what from how your can",
    "de": "der die das und ist nicht ein eine mit für auf den von zu sich auch wie ich sie wir dem des im es",
    "fr": "le la les et est des un une pour dans que qui pas sur avec vous nous je du au ce il elle plus",
    "es": "el la los las y es de que en un una por para con no se del su lo como más pero qué",
    "it": "il la di che e è un una per non con del della sono gli le si come più anche nel",
    "pt": "o a os as de que e é um uma para com não em do da se por mais como dos",
    "nl": "de het een en van is niet dat op te in voor met zijn aan ook als maar er",
    "pl": "i w na z że się nie jest do to jak za od po dla oraz który są",
    "sv": "och att det som en på är av för den till med inte har jag ett om",
}
_WORDS_OF = {language: frozenset(text.split()) for language, text in _LITTLE_WORDS.items()}
#: Words looked at, and hits that make a guess.
_LOOK, _HITS = 400, 2


def codes() -> list[str]:
    """The languages it can tell, in order."""
    return sorted({*_LITTLE_WORDS, *(language for language, _ in _SCRIPTS)})


def guess(text: str) -> str:
    """ISO 639-1 code, or "und"."""
    sample = text[:8000]
    letters = len(_LETTER.findall(sample))
    if not letters:
        return "und"
    for language, script in _SCRIPTS:
        if len(script.findall(sample)) / letters >= _SHARE:
            return language
    words = [word.casefold() for word in _WORD.findall(sample)[:_LOOK]]
    hits = Counter({language: sum(word in little for word in words) for language, little in _WORDS_OF.items()})
    (best, most), (_, second) = hits.most_common(2)
    return best if most >= _HITS and most > second else "und"
