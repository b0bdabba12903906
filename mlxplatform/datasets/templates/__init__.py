"""Dataset templates, one module each. Pure but for the ``ask`` they are given: no SQL, no HTTP, no files of ours.

A template turns inputs into sources (one unit of work each) and a source into drafts of rows. Everything else
(durability, filters, counting, splitting, publishing) happens outside and is the same for all.
"""
