"""The policy pages a new vault starts with. They live in ``Meta/``, belong to the owner from then on, and steer the prompts.

Short on purpose: a page is pasted into every prompt of its stages, and small models have small windows.
"""

from __future__ import annotations

#: Characters of one policy page that reach a prompt. It is a person's text: long ones must not crowd out the notes.
POLICY_LIMIT = 1200

PAGES: dict[str, str] = {
    "Editorial_Guidelines": "Write plain, short, factual sentences in the third person and present tense. State only what the "
    "notes say. No opinions, no advice, no greetings. Call the person “the user”.",
    "Bucketing": "A page is about one thing: a person, a project, a tool, a place, a standard or a field. Prefer the specific "
    "thing over the broad field.",
    "Article_Conventions": "A page has a lead of one or two sentences and two to six sections with short titles. Newer "
    "statements replace older ones; the older ones are kept in History.",
    "Infobox_Schemas": "Every page: kind (thing, person, domain, project or standard) and aliases.",
    "Category_Definitions": "No categories are defined yet.",
    "Entities": "Name things as they are usually written: “Raspberry Pi”, not “my pi”. Products, people, projects, places, tools "
    "and standards are entities; moods, greetings and single tasks are not.",
    "Summary_Style": "One idea a sentence. Keep numbers, names and dates exactly as the notes have them.",
    "Buckets": "No buckets are defined yet.",
    "Chunking": "A passage is a run of turns about one subject. Start a new one when the subject changes. Leave out small talk.",
    "Topics_to_Ignore": "One topic a line; lines that begin with “- ” are left out of the wiki.",
}

#: Policy pages each stage pastes into its prompt.
OF_STAGE: dict[str, tuple[str, ...]] = {
    "segment": ("Chunking",),
    "extract": ("Entities",),
    "outline": ("Article_Conventions", "Bucketing"),
    "draft": ("Editorial_Guidelines", "Summary_Style"),
    "lead": ("Editorial_Guidelines", "Summary_Style"),
    "place": ("Article_Conventions",),
    "patch": ("Editorial_Guidelines", "Summary_Style"),
    "reconcile": ("Article_Conventions",),
    "tighten": ("Summary_Style",),
}

README = """# Memory

This wiki is written from conversations, one reviewed change at a time. Every sentence points to its source turns.
Edit any page by hand: your words always win. `Meta/` holds the policy pages that steer the writing, `Talk/` the
machine's remarks on structure. `Reference/` is never written to. The folder opens in Obsidian as it is.
"""

GITIGNORE = ".DS_Store\nThumbs.db\n.obsidian/workspace*\n.trash/\n*.swp\n*~\n.#*\n*.mlxp-part\n"
