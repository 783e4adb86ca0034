/** Show characters that are invisible or change the direction of text, so that they cannot hide what a person reviews. Pure. */

/** Symbols that may be displayed as emoji. */
const EMOJI = String.raw`\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u2bff\u3030\u303d\u3297\u3299\u{1f000}-\u{1faff}`;

/**
 * Control characters without tab and line endings, format characters (direction, zero width, tags), line and paragraph separators, the empty
 * Braille pattern, and what Unicode calls ignorable: fillers, joiners, variation selectors. U+FE0E and U+FE0F choose between text and emoji:
 * after a symbol, or in a keycap such as 1️⃣, they are not hidden characters. The command line marks the same characters
 * (src/sandyard/kit/hidden_characters.py).
 */
const HIDDEN = new RegExp(
  [
    String.raw`\r(?!\n|$)|(?![\t\n\r])\p{Cc}`,
    String.raw`(?![\ufe0e\ufe0f])[\p{Cf}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800]`,
    String.raw`(?<![${EMOJI}])[\ufe0e\ufe0f](?!\u20e3)`,
  ].join("|"),
  "gu",
);

export interface Piece {
  /** A marker such as ⟨U+202E⟩ for a hidden character, otherwise the text itself. */
  text: string;
  hidden: boolean;
}

export const hasHidden = (text: string): boolean => text.search(HIDDEN) >= 0;

/** Split a text into visible parts and markers. */
export function splitHidden(text: string): Piece[] {
  const pieces: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) pieces.push({ text: text.slice(from, match.index), hidden: false });
    pieces.push({ text: marker(match[0]), hidden: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) pieces.push({ text: text.slice(from), hidden: false });
  return pieces;
}

/** Replace hidden characters with markers, where only plain text can be shown. */
export const markHidden = (text: string): string => text.replace(HIDDEN, marker);

function marker(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
