/** Format arguments and variables as lines. Values that do not fit (line breaks, outer spaces, empty) are written as JSON strings. */
export function formatWord(word: string): string {
  return word === "" || word.startsWith('"') || word !== word.trim() || /[\n\r]/.test(word)
    ? JSON.stringify(word)
    : word;
}

export function parseWord(line: string): string {
  if (!line.startsWith('"')) return line;
  try {
    const word: unknown = JSON.parse(line);
    return typeof word === "string" ? word : line;
  } catch {
    return line;
  }
}

/** Format variables as `NAME=value`. */
export function formatEnv(envs: Record<string, string>): string[] {
  return Object.entries(envs).map(([name, value]) => `${name}=${value === "" ? "" : formatWord(value)}`);
}

/** Parse the lines. Return the variables, or an error message for the first invalid line. */
export function parseEnv(lines: string[]): Record<string, string> | string {
  const envs: Record<string, string> = {};
  for (const line of lines) {
    const [, name, value] = /^([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) return `“${line}” is not a variable. Write NAME=value.`;
    envs[name] = parseWord(value);
  }
  return envs;
}
