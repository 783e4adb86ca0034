/**
 * Parse terminal output into styled text. Colours have names, which the page maps for both themes; all other escape sequences are ignored.
 *
 * A style continues on the next line, as in a terminal: `lookAfter` returns the style that the next line starts with.
 */
export type Colour = "black" | "red" | "green" | "yellow" | "blue" | "magenta" | "cyan" | "white" | "grey";

export interface AnsiStyle {
  fg?: Colour | undefined;
  bg?: Colour | undefined;
  bold?: boolean | undefined;
  dim?: boolean | undefined;
  italic?: boolean | undefined;
  underline?: boolean | undefined;
  inverse?: boolean | undefined;
  strike?: boolean | undefined;
}

export interface Span {
  text: string;
  look: AnsiStyle;
}

export const PLAIN: AnsiStyle = Object.freeze({});
const ESC = "\u001b";
const NAMES: Colour[] = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

// An escape sequence (colour codes in group 1), an incomplete one at the end, or a control character.
const SEQUENCE = new RegExp(
  [
    `${ESC}\\[([0-9;:]*)m`,
    `${ESC}\\[[0-?]*[ -/]*[@-~]`,
    `${ESC}\\][^\\u0007${ESC}]*(?:\\u0007|${ESC}\\\\|$)`,
    `${ESC}[PX^_][^${ESC}]*(?:${ESC}\\\\|$)`,
    `${ESC}\\[[0-?]*[ -/]*$`,
    `${ESC}[ -/]*[0-~]`,
    `${ESC}[ -/]*$`,
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f]",
  ].join("|"),
  "g",
);
// biome-ignore lint/suspicious/noControlCharactersInRegex: matching them is the purpose
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/;

const ERASE = new RegExp(`${ESC}\\[[02]?K`);

/** Return the text without escape sequences and control characters. */
export function stripAnsi(raw: string): string {
  return CONTROL.test(raw) ? raw.replace(SEQUENCE, "") : raw;
}

export function styleAfter(raw: string, before: AnsiStyle): AnsiStyle {
  if (!raw.includes(ESC)) return before;
  let look = before;
  for (const match of raw.matchAll(SEQUENCE)) if (match[1] !== undefined) look = applyCodes(look, match[1]);
  return look;
}

/** Split a line into pieces of one style. Their texts join to `strip(raw)`. */
export function spans(raw: string, before: AnsiStyle): Span[] {
  if (!CONTROL.test(raw)) return raw ? [{ text: raw, look: before }] : [];
  const pieces: Span[] = [];
  let look = before;
  let at = 0;
  const add = (text: string) => {
    const last = pieces[pieces.length - 1];
    if (!text) return;
    if (last && last.look === look) last.text += text;
    else pieces.push({ text, look });
  };
  for (const match of raw.matchAll(SEQUENCE)) {
    add(raw.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] !== undefined) look = applyCodes(look, match[1]);
  }
  add(raw.slice(at));
  return pieces;
}

function applyCodes(before: AnsiStyle, codes: string): AnsiStyle {
  const numbers = codes.split(/[;:]/).map((code) => Number(code || 0));
  let look: AnsiStyle = before === PLAIN ? {} : { ...before };
  for (let i = 0; i < numbers.length; i++) {
    const code = numbers[i] as number;
    if (code === 0) look = {};
    else if (code === 1) look.bold = true;
    else if (code === 2) look.dim = true;
    else if (code === 3) look.italic = true;
    else if (code === 4) look.underline = true;
    else if (code === 7) look.inverse = true;
    else if (code === 9) look.strike = true;
    else if (code === 22) look.bold = look.dim = undefined;
    else if (code === 23) look.italic = undefined;
    else if (code === 24) look.underline = undefined;
    else if (code === 27) look.inverse = undefined;
    else if (code === 29) look.strike = undefined;
    else if (code >= 30 && code <= 37) look.fg = NAMES[code - 30];
    else if (code >= 90 && code <= 97) look.fg = bright(code - 90);
    else if (code === 39) look.fg = undefined;
    else if (code >= 40 && code <= 47) look.bg = NAMES[code - 40];
    else if (code >= 100 && code <= 107) look.bg = bright(code - 100);
    else if (code === 49) look.bg = undefined;
    else if (code === 38 || code === 48) {
      const [colour, used] = parseExtendedColour(numbers.slice(i + 1));
      if (code === 38) look.fg = colour;
      else look.bg = colour;
      i += used;
    }
  }
  return Object.values(look).some(Boolean) ? look : PLAIN;
}

const bright = (index: number): Colour | undefined => (index === 0 ? "grey" : NAMES[index]);

/** Parse the numbers after 38 or 48. Return the colour and how many numbers were consumed. */
function parseExtendedColour(rest: number[]): [Colour | undefined, number] {
  if (rest[0] === 5) return [colourOfIndex(rest[1] ?? 0), 2];
  if (rest[0] === 2) return [nearest(rest[1] ?? 0, rest[2] ?? 0, rest[3] ?? 0), 4];
  return [undefined, 1];
}

function colourOfIndex(index: number): Colour | undefined {
  if (index < 8) return NAMES[index];
  if (index < 16) return bright(index - 8);
  if (index >= 232) return nearest(...(Array(3).fill(8 + (index - 232) * 10) as [number, number, number]));
  const level = (n: number) => (n ? 55 + n * 40 : 0);
  const cube = index - 16;
  return nearest(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

/** Return the named colour closest to a true colour: colours chosen for a black screen would be unreadable on a white one. */
export function nearest(red: number, green: number, blue: number): Colour {
  const high = Math.max(red, green, blue);
  const range = high - Math.min(red, green, blue);
  if (range < 40) return high > 170 ? "white" : high > 60 ? "grey" : "black";
  const hue =
    high === red
      ? ((green - blue) / range + 6) % 6
      : high === green
        ? (blue - red) / range + 2
        : (red - green) / range + 4;
  return (["red", "yellow", "green", "cyan", "blue", "magenta"] as const)[Math.round(hue) % 6] as Colour;
}

/** Return the line after a carriage return, when `over` was written over `old`. */
export function applyCarriageReturns(old: string, over: string): string {
  const length = stripAnsi(over).length;
  if (ERASE.test(over) || length >= stripAnsi(old).length) return over;
  return over + textFrom(old, length);
}

/** Return the raw text from the visible character `from` on, including its colours. */
function textFrom(raw: string, from: number): string {
  let seen = 0;
  let at = 0;
  let codes = "";
  for (const match of raw.matchAll(SEQUENCE)) {
    const before = match.index - at;
    if (seen + before > from) break;
    seen += before;
    at = match.index + match[0].length;
    if (match[1] !== undefined) codes = /^0?$/.test(match[1]) ? "" : codes + match[0];
  }
  return `${ESC}[0m${codes}${raw.slice(at + (from - seen))}`;
}

/** Apply backspaces: each removes the character before it. */
export function applyErasures(raw: string): string {
  if (!raw.includes("\b")) return raw;
  const kept: string[] = [];
  for (const character of raw) {
    if (character === "\b") kept.pop();
    else kept.push(character);
  }
  return kept.join("");
}
