"""The wiki's text rules: pure functions over Markdown pages. Nothing here reads a file, a row or a model."""
