/**
 * The lines of a command's output, kept outside React. Text is only appended, and the amount kept is limited.
 *
 * A line keeps its number; `first` is the number of the oldest line still kept. The last line of a stream may be unfinished and still
 * change. Only what forms lines is interpreted here: colours are parsed when a line is rendered.
 */
import { type AnsiStyle, applyCarriageReturns, applyErasures, PLAIN, styleAfter } from "@/lib/ansi";

export type Stream = "stdout" | "stderr";

export interface Limits {
  lines: number;
  characters: number;
  /** Longer lines are broken into several. */
  line: number;
}

export const LIMITS: Limits = { lines: 100_000, characters: 24_000_000, line: 10_000 };
const OPEN_FOR = 200; // Lines of the other stream after which an unfinished line is ended.

interface Unfinished {
  number: number;
  /** The text on the line when a carriage return moved the cursor back; null if there was none. */
  under: string | null;
  /** The text written since then, or since the start of the line. */
  text: string;
  /** A carriage return was received: the next character overwrites the line, unless it ends it. */
  returned: boolean;
  look: AnsiStyle;
}

export class LogStore {
  private texts: string[] = [];
  private streams: Stream[] = [];
  private looks: AnsiStyle[] = [];
  private readonly open: Record<Stream, Unfinished | null> = { stdout: null, stderr: null };
  private readonly next: Record<Stream, AnsiStyle> = { stdout: PLAIN, stderr: PLAIN };
  private readonly limits: Limits;
  private characters = 0;
  private readonly listeners = new Set<() => void>();
  /** The number of the oldest line kept. */
  first = 0;
  /** Incremented on every change. */
  version = 0;

  constructor(limits: Limits = LIMITS) {
    this.limits = limits;
  }

  /** One more than the newest line's number. */
  get end(): number {
    return this.first + this.texts.length;
  }

  /** Lines before this number will not change again. */
  get settled(): number {
    return Math.min(this.open.stdout?.number ?? this.end, this.open.stderr?.number ?? this.end);
  }

  text(number: number): string {
    return this.texts[number - this.first] ?? "";
  }

  stream(number: number): Stream {
    return this.streams[number - this.first] ?? "stdout";
  }

  /** Return the text style at the start of the line. */
  look(number: number): AnsiStyle {
    return this.looks[number - this.first] ?? PLAIN;
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  append(stream: Stream, text: string): void {
    if (!text) return;
    let from = 0;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", from)) {
      this.write(stream, text.slice(from, at));
      this.finish(stream);
      from = at + 1;
    }
    if (from < text.length) this.write(stream, text.slice(from));
    this.trim();
    this.version++;
    for (const listener of this.listeners) listener();
  }

  private write(stream: Stream, piece: string): void {
    let line = this.open[stream];
    if (line && this.end - line.number > OPEN_FOR) {
      this.finish(stream);
      line = null;
    }
    if (!line) {
      line = { number: this.end, under: null, text: "", returned: false, look: this.next[stream] };
      this.open[stream] = line;
      this.texts.push("");
      this.streams.push(stream);
      this.looks.push(line.look);
    }
    if (piece.includes("\r") || line.returned) this.rewrite(line, piece);
    else line.text += piece;
    if (line.text.includes("\b")) line.text = applyErasures(line.text);
    this.show(line, line.under === null ? line.text : applyCarriageReturns(line.under, line.text));
    while (line && this.text(line.number).length > this.limits.line) line = this.breakLine(stream, line);
  }

  private rewrite(line: Unfinished, piece: string): void {
    piece.split("\r").forEach((part, index) => {
      if (index) line.returned = true;
      if (!part) return;
      if (line.returned) {
        line.under = line.under === null ? line.text : applyCarriageReturns(line.under, line.text);
        line.text = "";
        line.returned = false;
      }
      line.text += part;
    });
  }

  /** Break a line that is too long: the rest continues on a new line. */
  private breakLine(stream: Stream, line: Unfinished): Unfinished | null {
    const whole = this.text(line.number);
    this.show(line, whole.slice(0, this.limits.line));
    this.finish(stream);
    this.write(stream, whole.slice(this.limits.line));
    return this.open[stream];
  }

  private show(line: Unfinished, text: string): void {
    const index = line.number - this.first;
    if (index < 0) return;
    this.characters += text.length - (this.texts[index] as string).length;
    this.texts[index] = text;
  }

  private finish(stream: Stream): void {
    const line = this.open[stream];
    if (!line) {
      this.texts.push("");
      this.streams.push(stream);
      this.looks.push(this.next[stream]);
      return;
    }
    this.next[stream] = styleAfter(this.text(line.number), line.look);
    this.open[stream] = null;
  }

  /** Drop old lines, many at a time, because each call copies everything that is kept. */
  private trim(): void {
    if (this.texts.length <= this.limits.lines * 1.1 && this.characters <= this.limits.characters * 1.1) return;
    let drop = Math.max(0, this.texts.length - this.limits.lines);
    let left = this.characters;
    for (let i = 0; i < drop; i++) left -= (this.texts[i] as string).length;
    while (left > this.limits.characters && drop < this.texts.length - 1) left -= (this.texts[drop++] as string).length;
    this.characters = left;
    this.texts = this.texts.slice(drop);
    this.streams = this.streams.slice(drop);
    this.looks = this.looks.slice(drop);
    this.first += drop;
    for (const stream of ["stdout", "stderr"] as const) {
      const line = this.open[stream];
      if (line && line.number < this.first) this.open[stream] = null;
    }
  }
}
