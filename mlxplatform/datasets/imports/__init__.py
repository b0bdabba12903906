"""Bringing rows in from files: uploads, files and folders of this machine, data sets of the hub.

File to file: rows go from the source into the version's files with an index beside them, never through SQL, in
constant memory. Either everything is imported or nothing; rows that are bad are named with file, line and reason.
"""
