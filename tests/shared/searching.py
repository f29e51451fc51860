"""Thousands of pieces, looked for in the memory of a process in one pass."""

import numpy as np

WORD = 8  # bytes of a piece by which its candidates are found


def occurring(pieces, memory):
    """Return those of the pieces, of 8 bytes or more, that occur in `memory`, at any offset."""
    by_word = {}
    for piece in pieces:
        by_word.setdefault(int.from_bytes(piece[:WORD], "little"), []).append(piece)
    wanted = np.array(list(by_word), dtype="<u8")
    beginnings = np.zeros(1 << 16, dtype=bool)  # by their first two bytes most words are passed over
    beginnings[(wanted & 0xFFFF).astype(np.intp)] = True
    found = set()
    for offset in range(min(WORD, max(0, len(memory) - WORD + 1))):
        words = np.frombuffer(memory, "<u8", (len(memory) - offset) // WORD, offset)
        candidates = np.flatnonzero(beginnings[(words & 0xFFFF).astype(np.intp)])
        for index in candidates[np.isin(words[candidates], wanted)].tolist():
            at = offset + WORD * index
            found |= {piece for piece in by_word[int(words[index])] if memory.startswith(piece, at)}
    return found
