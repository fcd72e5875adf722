"""Names and texts in SQL, quoted."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a string literal."""
    # Spark would replace `${name}` in a statement by the setting of that name.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
    return f"'{escaped}'"
