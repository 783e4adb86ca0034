/** Show characters that are invisible or change the direction of text, so that they cannot hide what a person reviews. Pure. */

/**
 * Control characters without tab and line endings, format characters (direction, zero width, tags), line and paragraph separators, fillers,
 * and variation selectors for rare ideographs.
 */
const HIDDEN = /\r(?!\n|$)|(?![\t\n\r])\p{Cc}|[\p{Cf}\u2028\u2029\u115f\u1160\u3164\uffa0]|[\u{e0000}-\u{e0fff}]/gu;

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
