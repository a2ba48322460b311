"""The note's rules (CONTRACT, "Rules of `put`", 2)."""

# ECMAScript's white space and line terminators. `str.strip()` without an argument strips another set.
ECMASCRIPT_BLANKS = (
    "\t\n\v\f\r \u00a0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)


def is_blank(note: str) -> bool:
    """Whether nothing remains of the note after stripping what ECMAScript calls white space."""
    return not note.strip(ECMASCRIPT_BLANKS)


def utf8_size(note: str) -> int:
    """The note's length in UTF-8 bytes, the unit of `maxNoteBytes`."""
    return len(note) if note.isascii() else len(note.encode())
