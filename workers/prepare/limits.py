"""Bounds of one preparation: how long it may take and how much memory it may use.

A chat template is a program that somebody else wrote and a prompt is as long as its sender likes, so both
run against these limits in a process that may be killed.
"""

#: Longest rendering of one chat template (seconds). Ordinary ones take well under a millisecond per turn.
RENDER_SECONDS = 2.0

#: Longest call in all: loading a tokenizer (0.1-0.6 s), rendering, encoding 10 MiB of text (seconds).
CALL_SECONDS = 30.0

#: Texts this many times longer (characters) than the window (tokens) are looked at only at their beginning:
#: encoding 10 MiB takes 10 to 40 s, and no tokenizer averages more than 8 characters a token on real text.
HOPELESS_RATIO = 16

#: Address space of the child (bytes). Three big tokenizers and a 10 MiB prompt stay under 1.5 GiB.
ADDRESS_SPACE = 4 * 1024**3

#: Longest rendered prompt (characters); a template that writes more is broken or malicious.
RENDERED_CHARACTERS = 64 * 1024 * 1024
